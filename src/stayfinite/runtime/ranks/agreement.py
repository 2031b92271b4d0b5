"""Makes the ranks agree: every rank skips a step, or none does.

A rank that decides alone would leave the others waiting in their next collective for ever. So the flag of the step check is
reduced over the ranks before it is read, and everything after that is decided together. Nothing is sent unless the training
itself communicates: the optimizer's parameters are in a DistributedDataParallel or are DTensors, or the loop has used a
collective in the step.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ...devices import widest
from ...saying import say
from ..window import Failure
from .groups import (
    group_of,
    groups_in_use,
    is_sharded,
    is_whole,
    launched_rank,
    sequence_of,
    world_of_all,
    wrappers_of,
    wrappers_there_are,
)
from .meetings import NOT_DUE, Agreed, DeepCheckVote
from .records import RankFailure, Settled, is_answered_alike, most_informative_first
from .side_groups import SideGroupError
from .summary import RankSummary
from .talk import RankTalk
from .verdict import absent_ranks, can_gather, is_seen_by_all

__all__ = ["RankFailure", "Ranks", "Settled"]


class Ranks:
    """The other processes of this training; does nothing if there are none.

    >>> ranks = Ranks()
    >>> ranks.is_on, ranks.any(True), ranks.gather("mine")
    (False, True, ['mine'])
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self.talk = RankTalk(seconds, self._say_once)
        self.summary = RankSummary()
        self._group: Any = None
        self._world: Any = None
        self._shared: dict[int, bool] = {}
        self._shared_optimizers: list[weakref.ref[Optimizer]] = []
        self._sequence, self._is_alone = -1, False
        self.is_apart = False
        """Set while this rank experiments alone and the others wait for the result."""
        self._said_dtype: torch.dtype | None = None
        self._rank: int | None = None
        self._is_first: bool | None = None
        self.wrappers: list[Any] = []
        self.first_wrappers: list[Any] = []
        """The wrappers that existed before the first step showed which of them are trained."""
        self.waiting: list[Any] = []
        """The wrappers whose own backward comes after the step that is looked into."""
        self._has_said = self.has_received = False
        """`has_received`: when each rank investigates alone, whether its own part was finite."""
        self._was_shared = False
        self._is_whole = True
        """Whether no parameter is sharded."""

    @property
    def is_together(self) -> bool:
        """Whether decisions are made together."""
        if self._group is None or self._is_alone:
            return False
        return world_of_all() is self._world

    @property
    def is_on(self) -> bool:
        """Whether the other ranks can be asked about this failure."""
        return self.is_together and not self.talk.is_lost

    @property
    def rank(self) -> int:
        """The global rank of this process; remembered after the process group is gone."""
        if self._rank is None and world_of_all() is not None:
            self._rank = dist.get_rank()
        return self._rank if self._rank is not None else launched_rank()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes files."""
        if self._is_first is None:
            return self.rank == 0
        return self._is_first

    def reports(self, rank: int) -> bool:
        """Whether this rank reports an incident of `rank`, when each rank has investigated alone."""
        if self.is_apart:
            return self.is_first or not self.has_received
        return not self.is_together or self.rank in (self.first, rank)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context for actions of this rank only."""
        was, self._is_alone = self._is_alone, True
        try:
            yield
        finally:
            self._is_alone = was

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """In this block, this rank computes as if there were no others."""
        self.is_apart = True
        try:
            with self.alone():
                yield
        finally:
            self.is_apart = False

    @property
    def can_be_apart(self) -> bool:
        """Whether this rank has the whole model and can compute without the others: with DistributedDataParallel, or if the
        loop averages the gradients.
        """
        params = [p for module in self.wrappers for p in module.parameters()]
        is_static = any(getattr(m, "static_graph", False) for m in self.wrappers)
        return self._is_whole and not is_static and all(not is_sharded(p) for p in params)

    @property
    def can_save_whole(self) -> bool:
        """Whether this rank writes the state for all: it is the first, and has all of it."""
        return not self.has_others or (self.is_first and self._is_whole)

    def leave(self) -> None:
        """Let this rank decide alone from now on: its loop is over, so it would not answer."""
        self._is_alone = True

    def forget(self) -> None:
        """Release the process groups at the end of the training, so that they can be freed before Python ends."""
        self._sum_up()
        self.leave()
        self._was_shared = self.has_others
        self.talk.close()
        self._group = self._world = None
        for kept in (self.wrappers, self.first_wrappers, self.waiting):
            kept.clear()

    def _sum_up(self) -> None:
        if self._world is not None:
            self.summary.write(self.rank, self._world.size())

    def is_joining(self) -> bool:
        """Whether ranks may end early (`with model.join()`), so that none can be waited for."""
        return any(m._join_config.enable for m in self.wrappers)

    @contextlib.contextmanager
    def each_for_itself(self) -> Iterator[None]:
        """A context for an investigation: together, or separately if ranks may have ended."""
        if self._is_alone or not self.is_joining():
            yield
            return
        self.has_received = False
        with self.apart():
            yield

    def mark(self) -> None:
        """Note the start of a window; collectives between here and the step show that the ranks are in step."""
        self.summary.open()
        if self._group is None and (world := world_of_all()) is not None:
            if self._sequence < 0:
                self.first_wrappers = wrappers_there_are()
            self._sequence = sequence_of(world)

    def is_adding_up(self) -> bool:
        """Whether a backward leaves its gradients on this rank at the moment (`with model.no_sync()`)."""
        return any(not m.require_backward_grad_sync for m in self.wrappers or self.first_wrappers)

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step is a common step of several ranks."""
        world = world_of_all()
        if world is None or self._is_alone:
            return False
        if world is not self._world:
            self.talk.close()
            self._world, self._group, self._said_dtype = world, None, None
            self._shared.clear()
        known = self._shared.get(id(optimizer))
        if known is None:
            wrappers = wrappers_of(optimizer)
            self.wrappers += [m for m in wrappers if all(m is not k for k in self.wrappers)]
            group = group_of(optimizer, wrappers)
            known = self._shared[id(optimizer)] = group is not None
            self._shared_optimizers.append(weakref.ref(optimizer))
            self._is_whole &= is_whole(optimizer)
            if group is not None:
                self._join(group)
        if not known and self._sequence >= 0 and sequence_of(world) != self._sequence:
            known = self._shared[id(optimizer)] = True
            self._join(world)
        return known

    def _join(self, group: Any) -> None:
        if self._group is not None and self._group is not group:
            group = self._world  # several meshes or groups: only the whole world covers them
        self._group = group
        self._said_dtype = None
        self._is_first = dist.get_rank(group) == 0

    @property
    def has_others(self) -> bool:
        """Whether this is a shared training, even if this rank has left it."""
        return (self._group is not None or self._was_shared) and not self.is_apart

    @property
    def is_lost(self) -> bool:
        """Whether the other ranks did not answer after this failure, so that this one continues on its own judgment."""
        return self.talk.is_lost and not self._is_alone

    @property
    def has_diverged(self) -> bool:
        """Whether the other ranks cannot be asked any more, so that no step can be repeated."""
        return self._group is not None and not self.is_on and not self.is_apart

    @property
    def has_left(self) -> bool:
        """Whether this rank decides alone because its loop is over."""
        return self._group is not None and not self.is_together and not self.is_apart

    def own_folder(self, folder: Path | None) -> Path | None:
        """The folder for files that every rank writes for itself."""
        return folder / f"rank{self.rank}" if folder is not None and world_of_all() else folder

    def reduce_flag(self, flag: Tensor, *more: float) -> Tensor:
        """Reduce `flag` over all ranks without a sync; returns it with the maximum of each of `more` (the first is a vote)."""
        device = self._device(flag.device)
        if self._said_dtype is None:
            self._said_dtype = widest(device)
        said = torch.tensor([0.0, *more], dtype=self._said_dtype, device=device)
        said[0] = flag
        try:
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        except RuntimeError as error:
            self._say_gone(error)
            said[0], said[1] = flag, NOT_DUE
        self.talk.is_lost = False
        flag.copy_(said[0])
        return said

    def _say_gone(self, error: RuntimeError) -> None:
        # The training uses the same group, so its next collective fails as well and reports it.
        self._say_once(f"another rank is gone ({_first_line(error)}); this one is watched alone")
        self.leave()

    def agree_on_flag(self, flag: Tensor, vote: DeepCheckVote, digest: float | None) -> Agreed:
        """The same with a read, and with everything that is compared at a synchronization."""
        return Agreed.decode(self.reduce_flag(flag, *Agreed.encode(vote, digest)).tolist())

    @property
    def can_gather(self) -> bool:
        """Whether the ranks can find out without a collective if all of them have seen the same."""
        return can_gather(self._group)

    def is_seen_by_all(self, share: float) -> bool:
        """Whether each rank has seen what is bad here; they are waited for, this share of the limit at most."""
        return is_seen_by_all(self._group, self.talk.seconds * share)

    def absent(self) -> list[int] | None:
        """The ranks that did not come to their first shared step in time; None where all have."""
        return absent_ranks(self._group, self.talk.seconds)

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank."""
        if not self.is_together:
            return value
        return self._largest(value)[0]

    def _largest(self, *values: bool) -> list[bool]:
        flags = torch.tensor([float(v) for v in values], device=self._device(torch.device("cpu")))
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(v) for v in flags.tolist()]

    def settle(self, is_fine: bool, has_moved: bool = False) -> Settled:
        """Confirm over the training's own group what was decided over our groups: a rank may miss the last message there, and
        the others cannot know. In the training's group all ranks get the same answer, or the training itself fails; they
        would synchronize there next in any case.
        """
        if not self.is_together:
            return Settled(is_fine, has_moved)
        self._sum_up()
        try:
            is_broken, moved = self._largest(not is_fine, has_moved)
        except RuntimeError as error:
            self._say_gone(error)
            return Settled(False, has_moved)
        if is_broken:
            self.talk.give_up()  # on every rank, so that no rank asks one that does not answer
        return Settled(not is_broken, moved)

    def all(self, value: bool) -> bool:
        """Whether it is true on every rank."""
        return not self.any(not value)

    def first_where(self, value: bool) -> int | None:
        """The first global rank on which it is true, or None."""
        return next((r for r in self.gather(self.rank if value else None) if r is not None), None)

    def is_so_anywhere(self, value: bool) -> bool:
        """Like `any`, but after a failure: not over the training's group."""
        return any(self.gather(value))

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order."""
        return self.talk.gather(self._group, value) if self.is_on else [value]

    def broadcast_from(self, rank: int, value: Any, more_seconds: float = 0.0) -> Any:
        """The value of a global rank, on all ranks."""
        if not self.is_on:
            return value
        return self.talk.broadcast(self._group, rank, value, more_seconds)

    def begin_replay(self) -> None:
        """Let the following replay communicate over our groups."""
        if self.is_on:
            optimizers = [o for ref in self._shared_optimizers if (o := ref()) is not None]
            self.talk.begin_replay(
                self._group, groups_in_use(self._group, self.wrappers, optimizers)
            )

    def end_replay(self, is_broken: bool) -> bool:
        """Whether any rank could not compute its part of a replay."""
        return self.talk.end_replay(self._group, is_broken) if self.is_on else is_broken

    def _say_once(self, text: str) -> None:
        if not self._has_said:
            self._has_said = True
            say(f"stayfinite (rank {self.rank}): {text}")

    @property
    def first(self) -> int:
        """The global rank that prints and writes."""
        return dist.get_global_rank(self._group, 0) if self.is_together else self.rank

    def agree(self, failure: Failure | None) -> Failure | None:
        """Agree on one failure for all ranks, with its rank, or on none."""
        if not self.is_on:
            return failure
        found = self.gather_failures(failure)
        return found[0] if found else None

    def agree_on_bad(
        self, failure: Failure | None, step: int, symptom: str = "gradient"
    ) -> Failure | None:
        """The same for a step that is known to be bad. If a rank cannot be reached, it is bad in the same way for all of them,
        and every rank skips it.
        """
        if not self.is_together:
            return failure
        agreed: Failure | None = None
        is_heard = False
        try:
            agreed = self.agree(failure)
            is_heard = self.is_on
        except Exception as error:
            if not isinstance(error, SideGroupError):
                self._say_once(f"the ranks could not talk: {type(error).__name__}: {error}")
        if self.settle(is_heard).is_fine:
            return agreed
        if failure is not None and is_answered_alike(failure.symptom, symptom):
            return failure
        return RankFailure(symptom, step, rank=self.first)

    def gather_failures(self, failure: Failure | None) -> list[RankFailure]:
        """The failures of all ranks, the most informative first."""
        own = None
        if failure is not None:
            rank = failure.rank if isinstance(failure, RankFailure) else self.rank
            own = (failure.symptom, failure.step, failure.name, failure.value, rank)
        return most_informative_first(self.gather(own))

    def _device(self, wanted: torch.device) -> torch.device:
        """A device that the backend of the group can communicate from."""
        able = self._group._device_types
        if not able or any(d.type == wanted.type for d in able):
            return wanted
        return torch.device(able[0].type, torch.accelerator.current_device_index())


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0].rpartition("] ")[2][:120] if text else type(error).__name__

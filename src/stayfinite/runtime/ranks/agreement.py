"""Makes the ranks agree: every rank skips a step, or none does.

A rank that decides alone leaves the others waiting in their next collective for ever. So the
sentinel's flag is reduced over the ranks before anybody reads it, and whatever an investigation
decides after that is decided together. Nothing here talks unless the training itself does: the
optimizer's parameters are in a DistributedDataParallel or are DTensors, or the loop has used a
collective of its own within the step.
"""

from __future__ import annotations

import contextlib
import time
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
from .records import RankFailure, Settled, is_answered_alike, most_telling_first
from .side_groups import SideGroupError
from .summary import RankSummary
from .talk import RankTalk
from .verdict import absent_ranks, can_gather, is_seen_by_all

__all__ = ["RankFailure", "Ranks", "Settled"]


class Ranks:
    """The other processes of this training; inert while there are none.

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
        self._sequence = -1
        self._is_alone = False
        self.is_apart = False
        """This rank experiments by itself; the others wait for what comes of it."""
        self._said_dtype: torch.dtype | None = None
        self._rank: int | None = None
        self._is_first: bool | None = None
        self.wrappers: list[Any] = []
        self.first_wrappers: list[Any] = []
        """Those that there were before the first step had shown which of them are trained."""
        self._has_said = self.has_received = False
        """`has_received`: of a step that each rank looks into by itself, its own part was finite."""
        self._was_shared = False
        self._is_whole = True
        """No parameter is spread over the ranks."""

    # -- who is there --------------------------------------------------------------------------

    @property
    def is_together(self) -> bool:
        """Whether decisions are made together."""
        if self._group is None or self._is_alone:
            return False
        return world_of_all() is self._world

    @property
    def is_on(self) -> bool:
        """Whether the others can be asked about this failure, too."""
        return self.is_together and not self.talk.is_lost

    @property
    def rank(self) -> int:
        """This process among all; remembered after the process group is gone."""
        if self._rank is None and world_of_all() is not None:
            self._rank = dist.get_rank()
        return self._rank if self._rank is not None else launched_rank()

    @property
    def is_first(self) -> bool:
        """The one rank that prints and writes files."""
        if self._is_first is None:
            return self.rank == 0
        return self._is_first

    def reports(self, rank: int) -> bool:
        """Whether this rank tells of what began at `rank`, where each has looked into it by itself."""
        if self.is_apart:
            return self.is_first or not self.has_received
        return not self.is_together or self.rank in (self.first, rank)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """For something that only this rank does."""
        was, self._is_alone = self._is_alone, True
        try:
            yield
        finally:
            self._is_alone = was

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """While it is entered, this rank computes as if there were no others."""
        self.is_apart = True
        try:
            with self.alone():
                yield
        finally:
            self.is_apart = False

    @property
    def can_be_apart(self) -> bool:
        """Whether this rank has a whole copy of the model, and can compute without the others: one in
        DistributedDataParallel, or one whose gradients the loop averages."""
        params = [p for module in self.wrappers for p in module.parameters()]
        is_static = any(getattr(m, "static_graph", False) for m in self.wrappers)
        return self._is_whole and not is_static and all(not is_sharded(p) for p in params)

    def leave(self) -> None:
        """From now on this rank decides alone: its loop is over, nobody would answer."""
        self._is_alone = True

    def forget(self) -> None:
        """The training is over: a process group that nobody holds on to can end before Python does."""
        self._sum_up()
        self.leave()
        self._was_shared = self.has_others
        self.talk.close()
        self._group = self._world = None
        self.wrappers.clear()
        self.first_wrappers.clear()

    def _sum_up(self) -> None:
        if self._world is not None:
            self.summary.write(self.rank, self._world.size())

    def is_joining(self) -> bool:
        """Whether ranks may end early (`with model.join()`): then nobody can be counted on."""
        return any(m._join_config.enable for m in self.wrappers)

    @contextlib.contextmanager
    def each_for_itself(self) -> Iterator[None]:
        """A look into a bad step: together, but where ranks may have ended each one by itself."""
        if self._is_alone or not self.is_joining():
            yield
            return
        self.has_received = False
        with self.apart():
            yield

    def mark(self) -> None:
        """A window opens; collectives from here to the step show that the ranks go in step."""
        if self._group is None and (world := world_of_all()) is not None:
            if self._sequence < 0:
                self.first_wrappers = wrappers_there_are()
            self._sequence = sequence_of(world)

    def is_adding_up(self) -> bool:
        """Whether a backward just now leaves its gradients on this rank (`with model.no_sync()`)."""
        return any(not m.require_backward_grad_sync for m in self.wrappers or self.first_wrappers)

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step is one step of several ranks."""
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
        """The other ranks did not answer after this failure; they go on training like this one."""
        return self.talk.is_lost and not self._is_alone

    @property
    def has_diverged(self) -> bool:
        """A shared training whose other ranks cannot be asked any more: no step can be run again."""
        return self._group is not None and not self.is_on and not self.is_apart

    @property
    def has_left(self) -> bool:
        """A shared training in which this rank decides alone, because its loop is over."""
        return self._group is not None and not self.is_together and not self.is_apart

    def own_folder(self, folder: Path | None) -> Path | None:
        """Where this rank writes what every rank writes for itself."""
        return folder / f"rank{self.rank}" if folder is not None and world_of_all() else folder

    # -- collectives -----------------------------------------------------------------------------

    def reduce_flag(self, flag: Tensor, *more: float) -> Tensor:
        """One tiny all-reduce, without a sync: every rank's `flag`, and the largest of each of `more` (first a vote)."""
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
        # The training's own group: its next collective fails as well, and says so by itself.
        self._say_once(f"another rank is gone ({_first_line(error)}); this one is watched alone")
        self.leave()

    def agree_on_flag(self, flag: Tensor, vote: DeepCheckVote, digest: float | None) -> Agreed:
        """The same, read at once, with all that is said at a meeting."""
        began = time.perf_counter()
        agreed = Agreed.decode(self.reduce_flag(flag, *Agreed.encode(vote, digest)).tolist())
        self.summary.note(began, time.perf_counter())
        return agreed

    @property
    def can_gather(self) -> bool:
        """Whether the ranks can find out, without a collective, if all of them have seen the same."""
        return can_gather(self._group)

    def is_seen_by_all(self, share: float) -> bool:
        """Whether each rank has seen what is bad here; they are waited for, this share of the limit at most."""
        return is_seen_by_all(self._group, self.talk.seconds * share)

    def absent(self) -> list[int] | None:
        """The ranks that did not come to their first shared step in time; None where all have."""
        return absent_ranks(self._group, self.talk.seconds)

    def any(self, value: bool) -> bool:
        """Whether it is so on any rank."""
        if not self.is_together:
            return value
        return self._largest(value)[0]

    def _largest(self, *values: bool) -> list[bool]:
        flags = torch.tensor([float(v) for v in values], device=self._device(torch.device("cpu")))
        dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(v) for v in flags.tolist()]

    def settle(self, is_fine: bool, has_moved: bool = False) -> Settled:
        """The last word on what was done over groups of ours: a rank may miss the last message there, and
        the others cannot know. The training's own group is the one place where all of them
        hear the same, or the training itself is over; they would meet there next anyway."""
        if not self.is_together:
            return Settled(is_fine, has_moved)
        self._sum_up()
        try:
            is_broken, moved = self._largest(not is_fine, has_moved)
        except RuntimeError as error:
            self._say_gone(error)
            return Settled(False, has_moved)
        if is_broken:
            self.talk.give_up()  # on every rank, so that nobody asks one that does not answer
        return Settled(not is_broken, moved)

    def all(self, value: bool) -> bool:
        """Whether it is so on every rank."""
        return not self.any(not value)

    def first_where(self, value: bool) -> int | None:
        """The first rank (counted over all processes) on which it is so, or None."""
        return next((r for r in self.gather(self.rank if value else None) if r is not None), None)

    def is_so_anywhere(self, value: bool) -> bool:
        """As `any`, after a failure: not over the training's group."""
        return any(self.gather(value))

    # -- after a failure: over a group of our own, with a time limit ---------------------------------

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        return self.talk.gather(self._group, value) if self.is_on else [value]

    def broadcast_from(self, rank: int, value: Any, more_seconds: float = 0.0) -> Any:
        """The value of that rank (counted over all processes), on all."""
        if not self.is_on:
            return value
        return self.talk.broadcast(self._group, rank, value, more_seconds)

    def begin_replay(self) -> None:
        """What is computed from here on talks over groups of ours."""
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
        """The rank that prints and writes, counted over all processes."""
        return dist.get_global_rank(self._group, 0) if self.is_together else self.rank

    def agree(self, failure: Failure | None) -> Failure | None:
        """One failure for all ranks, or none; the rank that has it is named in it."""
        if not self.is_on:
            return failure
        found = self.gather_failures(failure)
        return found[0] if found else None

    def agree_on_bad(
        self, failure: Failure | None, step: int, symptom: str = "gradient"
    ) -> Failure | None:
        """The same for a step that is known to be bad; where one rank could not be heard, it is bad in the same
        plain way for all of them, and every rank leaves it out."""
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
        """Every rank's failure, the most telling first."""
        own = None
        if failure is not None:
            rank = failure.rank if isinstance(failure, RankFailure) else self.rank
            own = (failure.symptom, failure.step, failure.name, failure.value, rank)
        return most_telling_first(self.gather(own))

    def _device(self, wanted: torch.device) -> torch.device:
        """A device that the group's backend can talk from."""
        able = self._group._device_types
        if not able or any(d.type == wanted.type for d in able):
            return wanted
        return torch.device(able[0].type, torch.accelerator.current_device_index())


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0].rpartition("] ")[2][:120] if text else type(error).__name__

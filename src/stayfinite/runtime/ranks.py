"""Agreement between the ranks of one training: every rank skips a step, or none does.

A rank that decides alone leaves the others waiting in their next collective for ever. So the
sentinel's flag is reduced over the ranks before anybody reads it, and whatever an investigation
decides after that is decided together. Nothing here talks unless the training itself does: the
optimizer's parameters are in a DistributedDataParallel or are DTensors, or the loop has used a
collective of its own within the step.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..numerics.health import dense_parts
from .state import TrainState
from .window import Failure

__all__ = [
    "Agreed",
    "RankFailure",
    "Ranks",
    "hushed",
    "local",
    "note_initial",
    "plain_norm",
    "unwrapped",
]

DUE, NOT_DUE, URGENT = 0, 1, 2
"""A rank's wish for a deep check. The largest of all counts: one urgent wish is enough, and without
one a single rank that is not due yet (its clock, its budget) is waited for."""

_ORDER = (
    "learning_rate", "loss", "parameter", "buffer", "optimizer_state", "average", "gradient", "spike",
    "scaler_skip",
)  # fmt: skip


class Agreed(NamedTuple):
    """What one all-reduce told every rank alike."""

    is_bad: bool
    is_due: bool


@dataclass(frozen=True)
class RankFailure(Failure):
    """A symptom that all ranks act on, and the rank that has it."""

    rank: int = 0


class Ranks:
    """The other processes of this training; inert while there are none.

    >>> ranks = Ranks()
    >>> ranks.is_on, ranks.any(True), ranks.gather("mine")
    (False, True, ['mine'])
    """

    def __init__(self) -> None:
        self._group: Any = None
        self._world: Any = None
        self._shared: dict[int, bool] = {}
        self._sequence = -1
        self._is_alone = False
        self.is_apart = False
        """This rank experiments by itself; the others wait for what comes of it."""
        self._pair: Tensor | None = None
        self._rank: int | None = None
        self._is_first: bool | None = None
        self.wrappers: list[Any] = []
        self._has_warned = False
        self._was_shared = False
        self._is_whole = True
        """No parameter is spread over the ranks."""

    # -- who is there --------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        """Whether decisions are made together."""
        return self._group is not None and not self._is_alone and _world() is self._world

    @property
    def rank(self) -> int:
        """This process among all; remembered after the process group is gone."""
        if self._rank is None and _world() is not None:
            self._rank = dist.get_rank()
        return self._rank if self._rank is not None else launched_rank()

    @property
    def is_first(self) -> bool:
        """The one rank that prints and writes files."""
        if self._is_first is None:
            return self.rank == 0
        return self._is_first

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
        return self._is_whole and not is_static and all(not _is_sharded(p) for p in params)

    def leave(self) -> None:
        """From now on this rank decides alone: its loop is over, nobody would answer."""
        self._is_alone = True

    def forget(self) -> None:
        """The training is over: a process group that nobody holds on to can end before Python does."""
        self.leave()
        self._was_shared = self.has_others
        self._group = self._world = self._pair = None
        self.wrappers.clear()

    def is_joining(self) -> bool:
        """Whether ranks may end early (`with model.join()`): then nobody can be counted on."""
        if not any(m._join_config.enable for m in self.wrappers):
            return False
        if not self._has_warned:
            self._has_warned = True
            if self.is_first:
                print(
                    "stayfinite: steps inside `with model.join():` are not watched, because a rank "
                    "that has ended early cannot agree to anything\n"
                    "  try: give every rank the same number of batches (DistributedSampler does)",
                    file=sys.stderr,
                )
        return True

    def mark(self) -> None:
        """A window opens; collectives from here to the step show that the ranks go in step."""
        if self._group is None and (world := _world()) is not None:
            self._sequence = _sequence(world)

    def is_shared(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer's step is one step of several ranks."""
        world = _world()
        if world is None or self._is_alone:
            return False
        if world is not self._world:
            self._world, self._group, self._pair = world, None, None
            self._shared.clear()
        known = self._shared.get(id(optimizer))
        if known is None:
            wrappers = _wrappers_of(optimizer)
            self.wrappers += [m for m in wrappers if all(m is not k for k in self.wrappers)]
            group = _group_of(optimizer, wrappers)
            known = self._shared[id(optimizer)] = group is not None
            params = [p for g in optimizer.param_groups for p in g["params"]]
            self._is_whole &= not any(_is_sharded(p) for p in params)
            if group is not None:
                self._join(group)
        if not known and self._sequence >= 0 and _sequence(world) != self._sequence:
            known = self._shared[id(optimizer)] = True
            self._join(world)
        return known

    def _join(self, group: Any) -> None:
        if self._group is not None and self._group is not group:
            group = self._world  # several meshes or groups: only the whole world covers them
        self._group = group
        self._pair = None
        self._is_first = dist.get_rank(group) == 0

    @property
    def has_others(self) -> bool:
        """Whether this is a shared training, even if this rank has left it."""
        return (self._group is not None or self._was_shared) and not self.is_apart

    @property
    def has_parted(self) -> bool:
        """A shared training whose other ranks cannot be asked any more: no step can be run again."""
        return self._group is not None and not self.is_on and not self.is_apart

    def own_folder(self, folder: Path | None) -> Path | None:
        """Where this rank writes what every rank writes for itself."""
        return folder / f"rank{self.rank}" if folder is not None and _world() else folder

    # -- collectives -----------------------------------------------------------------------------

    def reduce_flag(self, flag: Tensor, wish: int) -> Tensor:
        """One tiny all-reduce: `flag` becomes every rank's, without a sync; [flag, wish] to read."""
        if self._pair is None:
            self._pair = torch.zeros(2, device=self._device(flag.device))
        pair = self._pair
        pair[0] = flag
        pair[1] = wish
        dist.all_reduce(pair, op=dist.ReduceOp.MAX, group=self._group)
        flag.copy_(pair[0])
        return pair

    def agree_on_flag(self, flag: Tensor, wish: int) -> Agreed:
        """The same, read at once."""
        bad, due = self.reduce_flag(flag, wish).tolist()
        return Agreed(bad != 0, due != NOT_DUE)

    def any(self, value: bool) -> bool:
        """Whether it is so on any rank."""
        if not self.is_on:
            return value
        flag = torch.tensor([float(value)], device=self._device(torch.device("cpu")))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def all(self, value: bool) -> bool:
        """Whether it is so on every rank."""
        return not self.any(not value)

    def first_where(self, value: bool) -> int | None:
        """The first rank (counted over all processes) on which it is so, or None."""
        return next((r for r in self.gather(self.rank if value else None) if r is not None), None)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks."""
        if not self.is_on:
            return [value]
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, value, group=self._group)
        return found

    def broadcast_from(self, rank: int, value: Any) -> Any:
        """The value of that rank (counted over all processes), on all."""
        if not self.is_on:
            return value
        box = [value if rank == self.rank else None]
        dist.broadcast_object_list(box, src=rank, group=self._group)
        return box[0]

    @property
    def first(self) -> int:
        """The rank that prints and writes, counted over all processes."""
        return dist.get_global_rank(self._group, 0) if self.is_on else self.rank

    def agree(self, failure: Failure | None) -> Failure | None:
        """One failure for all ranks, or none; the rank that has it is named in it."""
        if not self.is_on:
            return failure
        found = self.gather_failures(failure)
        return found[0] if found else None

    def gather_failures(self, failure: Failure | None) -> list[RankFailure]:
        """Every rank's failure, the most telling first."""
        own = None
        if failure is not None:
            rank = failure.rank if isinstance(failure, RankFailure) else self.rank
            own = (failure.symptom, failure.step, failure.name, failure.value, rank)
        found = [RankFailure(*f) for f in self.gather(own) if f is not None]
        return sorted(found, key=lambda f: (_ORDER.index(f.symptom), f.rank))

    def _device(self, wanted: torch.device) -> torch.device:
        """A device that the group's backend can talk from."""
        able = self._group._device_types
        if not able or any(d.type == wanted.type for d in able):
            return wanted
        return torch.device(able[0].type, torch.accelerator.current_device_index())


# -- is this training a shared one? ----------------------------------------------------------------


def launched_rank() -> int:
    """The rank that a launcher (torchrun) gave to this process, before it has joined the others."""
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else 0


def launched_at() -> float:
    """When this run began: under torchrun the launcher's start, so that all its ranks agree."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return time.time()
    try:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(stat[19]) / os.sysconf("SC_CLK_TCK")
        return float(round(time.time() - age))
    except (OSError, ValueError, IndexError):
        return time.time()


has_world: Callable[[], bool] = dist.is_initialized if dist.is_available() else bool
"""Whether there is a process group at all: asked in every step, the rest only then."""


def _world() -> Any:
    """The process group of all, or None where there is nobody to agree with."""
    if not has_world():
        return None
    world = dist.group.WORLD
    return world if world is not None and world.size() > 1 else None


def _sequence(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1


def _group_of(optimizer: Optimizer, wrappers: list[Any]) -> Any:
    """The processes that hold parts or copies of what this optimizer moves, or None."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    groups: list[Any] = []
    for mesh in {id(m): m for p in params if (m := getattr(p, "device_mesh", None))}.values():
        groups.append(mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD)
    groups += [module.process_group for module in wrappers]
    distinct = list({id(g): g for g in groups if g.size() > 1}.values())
    if len(distinct) > 1:
        return dist.group.WORLD
    return distinct[0] if distinct else None


def _wrappers_of(optimizer: Optimizer) -> list[Any]:
    ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [m for m in _wrappers() if any(id(p) in ids for p in m.parameters())]


def _wrappers() -> list[Any]:
    # type(), not isinstance(): that would wake lazy modules and weak references' proxies.
    return [o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel)]


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel: it can be called without the other ranks."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def _is_sharded(parameter: Tensor) -> bool:
    return getattr(parameter, "device_mesh", None) is not None


@contextlib.contextmanager
def hushed(ranks: Ranks) -> Iterator[None]:
    """Models in DistributedDataParallel called without a word to the other ranks."""
    names = ("require_forward_param_sync", "require_backward_grad_sync")
    # In a replay the collector shows nothing that is older.
    found = {id(m): m for m in (*ranks.wrappers, *_wrappers())}
    kept = [(module, {n: getattr(module, n) for n in names}) for module in found.values()]
    for module, _ in kept:
        for name in names:
            setattr(module, name, False)
    try:
        yield
    finally:
        for module, values in kept:
            for name, value in values.items():
                setattr(module, name, value)


# -- shards: each rank looks at its own part --------------------------------------------------------


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, without a collective; any other tensor as it is.

    >>> local(torch.ones(2))
    tensor([1., 1.])
    """
    part: Tensor | None = getattr(tensor, "_local_tensor", None)
    if part is None:
        return tensor
    if hasattr(part, "wait"):  # the result of a collective that is still under way
        part = part.wait()
    return part


def plain_norm(norm: Tensor) -> Tensor:
    """The total norm as a plain tensor; `clip_grad_norm_` gives a DTensor where parameters are."""
    placements: Sequence[Any] = getattr(norm, "placements", ())
    if any(p.is_partial() for p in placements):
        return norm.full_tensor()  # type: ignore[attr-defined, no-any-return]
    return local(norm)


@torch.no_grad()
def note_initial(state: TrainState) -> None:
    """What the state is like before the first step, each rank for its own shards.

    The norm of a DTensor would be a collective, and which parameters are worth one differs by rank.
    """
    if not any(hasattr(p, "device_mesh") for _, p in state.parameters()):
        state.note_initial()
        return
    state.initially_bad = {f"{k} {n}" for k, n, _ in state.bad_state(ignore_initial=False)}
    state.first_sizes = {}
    for name, p in state.parameters():
        parts = dense_parts(p)
        if parts and f"parameter {name}" not in state.initially_bad:
            largest = max(float(torch.linalg.vector_norm(t, math.inf)) for t in parts)
            norm = math.hypot(*(float(torch.linalg.vector_norm(t)) for t in parts))
            state.first_sizes[name] = (largest, norm)
    state.first_lrs = state.lrs()

"""Copies of the training's state that restore it after an experiment."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..numerics.health import is_finite
from ..recover.scratch import ScratchSnapshot
from ..recover.snapshot import DiskSnapshot, Snapshot, has_disk_room
from .outside_modes import outside_user_code
from .rng import RngState
from .state import TrainState
from .undo import entries, optimizer_extras

__all__ = [
    "OptimizerCopy",
    "SearchPoint",
    "SmallStateCopy",
    "StateCopy",
    "choose_snapshot",
    "free_memory",
]

_MOST_OF_PROCESS = 0.1
"""A snapshot of tensors on the host that would be a larger share of the process's memory goes to a temporary file."""


def choose_snapshot(state: TrainState, ram_share: float, folder: Path | None) -> bool:
    """Choose memory or a file for the snapshot; False if there is room in neither."""
    size, here = _snapshot_bytes(state)
    if size < free_memory() * ram_share:
        is_large = here > _MOST_OF_PROCESS * (_process_memory() + here)
        if is_large and not isinstance(state.snapshot, ScratchSnapshot):
            state.snapshot = ScratchSnapshot.in_one_of([_temporary()], size) or state.snapshot
        return True
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="stayfinite-"))
        weakref.finalize(state, shutil.rmtree, folder, ignore_errors=True)
    if not has_disk_room(folder, size):
        return False
    state.snapshot = DiskSnapshot(folder / "snapshot.pt")
    return True


@outside_user_code
def _snapshot_bytes(state: TrainState) -> tuple[int, int]:
    """(all, those of tensors on the host), an estimate: the optimizer keeps about two more tensors of the size of each
    parameter.
    """
    named = [*state.parameters(), *state.buffers]
    sizes = [(t, 3 * t.numel() * t.element_size()) for _, t in named]
    sizes += [(t, t.numel() * t.element_size()) for _, t in state.average_tensors()]
    return sum(n for _, n in sizes), sum(n for t, n in sizes if t.device.type == "cpu")


def _temporary() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return None


def _process_memory() -> float:
    """The memory of this process, in bytes; without a way to tell, that of one that has imported torch."""
    try:
        with open("/proc/self/statm") as file:
            return float(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 3e8


def free_memory() -> float:
    """Free memory in bytes."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return 4e9


class StateCopy:
    """A copy of the whole state, taken before a window is replayed with its step applied."""

    def __init__(self) -> None:
        self._kept = Snapshot()
        self._rng: RngState | None = None

    def take(self, state: TrainState, rng: RngState | None) -> None:
        """Copy the state, and go to `rng`, from which the replay draws."""
        own = state.snapshot
        if not self._kept.is_taken:
            self._kept = _another(own)
        state.snapshot = self._kept
        try:
            state.take_snapshot(0)
        finally:
            state.snapshot = own
        self._rng = rng or RngState.now()
        self._rng.restore()

    def restore(self) -> None:
        self._kept.restore()
        if self._rng is not None:
            self._rng.restore()


def _another(own: Snapshot) -> Snapshot:
    """An empty snapshot in memory, or on the disk where this one is."""
    if isinstance(own, ScratchSnapshot):
        return ScratchSnapshot.in_one_of([own.folder], own.size) or Snapshot()
    if isinstance(own, DiskSnapshot):
        return ScratchSnapshot(own.path.parent)
    return Snapshot()


class SearchPoint:
    """The weights at which the closure of an optimizer with a line search (LBFGS) failed."""

    def __init__(self, optimizer: Any) -> None:
        self._params = [p for g in optimizer.param_groups for p in g["params"]]
        self._there = [p.detach().clone() for p in self._params]

    @classmethod
    def of(cls, optimizer: Any) -> SearchPoint | None:
        """None if the search itself has made the weights non-finite."""
        point = cls(optimizer)
        return point if all(is_finite(t) for t in point._there) else None

    @property
    def largest(self) -> float:
        """The largest magnitude of these weights."""
        return max((float(t.abs().max()) for t in self._there if t.numel()), default=0.0)

    @contextlib.contextmanager
    def visited(self) -> Iterator[None]:
        """Give the model these weights in this block."""
        kept = [p.detach().clone() for p in self._params]
        _write(self._params, self._there)
        try:
            yield
        finally:
            _write(self._params, kept)


@torch.no_grad()
def _write(params: list[Tensor], values: list[Tensor]) -> None:
    for p, value in zip(params, values):
        p.copy_(value)


class SmallStateCopy:
    """A copy of buffers, scheduler, scaler and random state."""

    def __init__(self, snapshot: Snapshot, rng: RngState) -> None:
        self._snapshot = snapshot
        self._rng = rng

    @classmethod
    def take(cls, state: TrainState) -> SmallStateCopy:
        snapshot = Snapshot()
        snapshot.take(0, [b for _, b in state.buffers], state.small_captures(), [])
        return cls(snapshot, RngState.now())

    def restore(self) -> None:
        self._snapshot.restore()
        self._rng.restore()


class OptimizerCopy:
    """A copy of one optimizer's parameters and state; `take` reuses its memory."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._kept = Snapshot()

    @classmethod
    def taken(cls, optimizer: Any) -> OptimizerCopy:
        """A copy of the current values."""
        made = cls(optimizer)
        made.take()
        return made

    def take(self) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        groups = optimizer.param_groups
        tensors = [p for g in groups for p in g["params"]]
        tensors += [v for g in groups for v in g.values() if isinstance(v, Tensor)]
        states = [e for e in optimizer.state.values() if isinstance(e, dict)]
        tensors += [v for e in states for v in e.values() if isinstance(v, Tensor)]
        captures = [entries(g, skip=("params",)) for g in groups]
        captures += [entries(e) for e in states]
        captures += optimizer_extras(optimizer)
        self._kept.take(0, tensors, captures, [optimizer.state])

    def restore(self) -> None:
        self._kept.restore()

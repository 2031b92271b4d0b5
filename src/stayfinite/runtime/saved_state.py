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
from ..recover.snapshot import DiskSnapshot, Snapshot
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


def choose_snapshot(state: TrainState, ram_share: float, folder: Path | None) -> bool:
    """Choose memory or a file for the snapshot; False if there is room in neither."""
    size = _snapshot_bytes(state)
    if size < free_memory() * ram_share:
        return True
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="stayfinite-"))
        weakref.finalize(state, shutil.rmtree, folder, ignore_errors=True)
    if not DiskSnapshot.has_room(folder, size):
        return False
    state.snapshot = DiskSnapshot(folder / "snapshot.pt")
    return True


@outside_user_code
def _snapshot_bytes(state: TrainState) -> int:
    """An estimate: the optimizer keeps about two more tensors of the size of each parameter."""
    tensors = [t for _, t in state.parameters()] + [t for _, t in state.buffers]
    averages = sum(t.numel() * t.element_size() for _, t in state.average_tensors())
    return 3 * sum(t.numel() * t.element_size() for t in tensors) + averages


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
        if isinstance(own, DiskSnapshot) and not self._kept.is_taken:
            self._kept = DiskSnapshot(own.path.with_name("before.pt"))
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

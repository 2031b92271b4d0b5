"""Copies of the training's state, to be put back after something was tried."""

from __future__ import annotations

from ..observe.rng import RngState
from ..recover.snapshot import Snapshot
from .state import TrainState
from .window import Window

__all__ = ["Aside", "Before"]


class Before:
    """The whole state before one window of a journey back."""

    def __init__(self) -> None:
        self._kept = Snapshot()
        self._rng: RngState | None = None

    def take(self, state: TrainState, window: Window) -> None:
        own, state.snapshot = state.snapshot, self._kept
        try:
            state.take_snapshot(0)
        finally:
            state.snapshot = own
        self._rng = window.rng or RngState.now()
        self._rng.restore()

    def restore(self) -> None:
        self._kept.restore()
        if self._rng is not None:
            self._rng.restore()


class Aside:
    """Buffers, scheduler, scaler and random state as the loop left them."""

    def __init__(self, snapshot: Snapshot, rng: RngState) -> None:
        self._snapshot = snapshot
        self._rng = rng

    @classmethod
    def take(cls, state: TrainState) -> Aside:
        snapshot = Snapshot()
        snapshot.take(0, [b for _, b in state.buffers()], state.small_slots(), [])
        return cls(snapshot, RngState.now())

    def put_back(self) -> None:
        self._snapshot.restore()
        self._rng.restore()

"""Iterations of a loop that draws from no loader.

Nothing tells where such an iteration begins: it is over when one of its optimizers steps again, and its
random numbers are those from the end of the step before.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch import Tensor

from ..numerics.health import is_finite
from .batch_tracker import BatchTracker
from .engine import Engine
from .frames import standing_at
from .rank_groups import has_world
from .window import Window

__all__ = ["Loaderless"]


class Loaderless:
    """Counts them, and opens their windows."""

    def __init__(self, engine: Engine, tracker: BatchTracker) -> None:
        self._engine, self._tracker = engine, tracker
        self._stepped: set[int] = set()
        """Optimizers that have stepped in this iteration."""
        self._rng: Any = None

    @property
    def is_under_way(self) -> bool:
        """Whether an optimizer has stepped in an iteration that is not counted yet."""
        return bool(self._stepped)

    def may_begin(self) -> None:
        """The first iteration may begin here."""
        self._rng = self._engine.rng.capture()

    def open(self) -> Window:
        optimizers = self._engine.state.optimizers
        if self._stepped and all(id(o) in self._stepped for o in optimizers):
            self._begin_next()
        return self._tracker.open_loaderless(self._rng)

    def count(self, window: Window, optimizer: Any) -> None:
        """This optimizer steps in the window: for the second time, and the iteration is a new one."""
        if id(optimizer) in self._stepped:
            self._begin_next()
            ref = window.batches[-1]
            ref.step = self._tracker.num_batches
            window.losses = [(ref.step, t) for _, t in window.losses]
        self._stepped.add(id(optimizer))

    def note_backward(self, window: Window, loss: Tensor, frame: FrameType) -> None:
        """How the loop stands where its loss is bad: at the step, behind other backwards, it is too late.
        Ranks stand at different places: they look at the one that they share."""
        is_asked = not window.standing and loss.is_cpu and not has_world()
        if is_asked and not is_finite(loss):
            window.standing = standing_at(frame)

    def same_iteration(self, optimizer: Any) -> None:
        """The loop is still in the iteration in which this one has stepped."""
        self._stepped.discard(id(optimizer))

    def all_stepped(self) -> None:
        """What comes next is another iteration."""
        self._stepped.update(id(o) for o in self._engine.state.optimizers)

    def after_step(self) -> None:
        """The next iteration has begun, though it shows itself only when its forward is over."""
        self._rng = self._engine.open()

    def _begin_next(self) -> None:
        self._stepped.clear()
        self._tracker.num_batches += 1

"""Iterations of a loop without a loader.

Nothing tells where such an iteration begins: it is over when one of its optimizers steps again, and its
random numbers are those from the end of the step before.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch import Tensor

from ...numerics.health import is_finite
from ...patches.compiled import is_compiled
from ..engine import Engine
from ..frames import Standing, standing_at
from ..ranks.groups import has_world
from ..window import Window
from .batch_tracker import BatchTracker

__all__ = ["Loaderless"]


class Loaderless:
    """Counts them, and opens their windows."""

    def __init__(self, engine: Engine, tracker: BatchTracker) -> None:
        self._engine, self._tracker = engine, tracker
        self._stepped: set[int] = set()
        """Optimizers that have stepped in this iteration."""
        self._rng: Any = None
        self._is_close = False
        """A step that adds up several backwards had bad gradients from one that was over: each is looked at."""
        self._last: tuple[Window, tuple[Standing, ...]] | None = None
        """Where the loop stood at its last backward, while each is looked at."""

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
        elif is_asked and self._is_close:
            self._look_back(window, frame)

    def can_keep(self, loss: Tensor) -> bool:
        """Whether its graph can stay for a replay; a compiled one would raise in the loop's own backward."""
        return not is_compiled(loss)

    def look_closely(self) -> None:
        """From here on it is known where the loop stood when its gradients went bad."""
        self._is_close, self._last = True, None

    def _look_back(self, window: Window, frame: FrameType) -> None:
        """The backward before this one has left its gradients: bad ones are its own."""
        last, self._last = self._last, (window, standing_at(frame))
        if last is None or last[0] is not window:
            return
        if not all(is_finite(g) for _, g in self._engine.state.grads()):
            window.standing, self._last = last[1], None

    def same_iteration(self, optimizer: Any) -> None:
        """The loop is still in the iteration in which this one has stepped."""
        self._stepped.discard(id(optimizer))

    def all_stepped(self) -> None:
        """What comes next is another iteration."""
        self._stepped.update(id(o) for o in self._engine.state.optimizers)

    def after_step(self) -> None:
        """The next iteration has begun, though it shows itself only when its forward is over."""
        self._rng, self._last = self._engine.open(), None

    def _begin_next(self) -> None:
        self._stepped.clear()
        self._tracker.num_batches += 1

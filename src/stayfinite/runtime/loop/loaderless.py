"""Iterations of a loop without a loader.

The start of such an iteration is not visible. It ends when one of its optimizers steps again, and its random numbers are
those after the previous step.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch import Tensor

from ...numerics.health import is_finite
from ...patches.compiled import is_compiled
from ..engine import Engine
from ..frames import save_frames
from ..ranks.groups import has_world
from ..window import Window
from .batch_tracker import BatchTracker

__all__ = ["Loaderless"]


class Loaderless:
    """Counts the iterations of a loop without a loader, and opens their windows."""

    def __init__(self, engine: Engine, tracker: BatchTracker) -> None:
        self._engine, self._tracker = engine, tracker
        self.stepped: set[int] = set()
        """Optimizers that have stepped in this iteration."""
        self.rng: Any = None
        """The random state at the start of the next iteration."""
        self.is_close = False
        """Whether each backward is checked, because an accumulated step had bad gradients from an earlier one."""

    @property
    def is_under_way(self) -> bool:
        """Whether an optimizer has stepped in an iteration that is not counted yet."""
        return bool(self.stepped)

    def may_begin(self) -> None:
        """The first iteration may begin here."""
        self.rng = self._engine.rng.capture()

    def open(self) -> Window:
        optimizers = self._engine.state.optimizers
        if self.stepped and all(id(o) in self.stepped for o in optimizers):
            self.begin_next()
        return self._tracker.open_loaderless(self.rng)

    def count(self, window: Window, optimizer: Any) -> None:
        """Note a step of this optimizer; its second step begins a new iteration."""
        if id(optimizer) in self.stepped:
            self.begin_next()
            ref = window.batches[-1]
            ref.step = self._tracker.num_batches
            window.losses = [(ref.step, t) for _, t in window.losses]
        self.stepped.add(id(optimizer))

    def note_backward(self, window: Window, loss: Tensor, frame: FrameType) -> None:
        """Save the frames of the loop if the loss is bad: at the step, after other backwards, they have changed.

        Not with several ranks, whose frames differ: they use the step, which they share.
        """
        if self._may_save(window, loss) and not is_finite(loss):
            window.saved_frames = save_frames(frame)

    def after_backward(self, window: Window | None, frame: FrameType) -> None:
        """Save them if the gradients are bad; kept from a good backward, they would keep all that the loop lets go of."""
        loss = window.losses[-1][1] if window is not None and window.losses else None
        if window is None or loss is None or not window.is_loaderless:
            return
        grads = (g for _, g in self._engine.state.grads())
        if self._may_save(window, loss) and not all(is_finite(g) for g in grads):
            window.saved_frames = save_frames(frame)

    def _may_save(self, window: Window, loss: Tensor) -> bool:
        return not window.saved_frames and loss.is_cpu and not has_world()

    def can_keep(self, loss: Tensor) -> bool:
        """Whether the graph can be retained for a replay; with a compiled one, the loop's backward would raise."""
        return not is_compiled(loss)

    def check_each_backward(self) -> None:
        """Check the gradients after each backward from now on."""
        self.is_close = True

    def same_iteration(self, optimizer: Any) -> None:
        """Note that the loop is still in the iteration in which this optimizer has stepped."""
        self.stepped.discard(id(optimizer))

    def all_stepped(self) -> None:
        """Let the next step begin another iteration."""
        self.stepped.update(id(o) for o in self._engine.state.optimizers)

    def after_step(self) -> None:
        """Prepare the next iteration, which has begun but is noticed only after its forward."""
        self.rng = self._engine.open()

    def begin_next(self) -> None:
        self.stepped.clear()
        self._tracker.num_batches += 1

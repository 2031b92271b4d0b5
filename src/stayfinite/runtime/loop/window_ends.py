"""Closes a window when the loop leaves its iteration."""

from __future__ import annotations

import sys
from typing import Any

from ..engine import Engine
from ..frames import is_at_loop_head
from ..window import Window
from .bad_steps import BadSteps
from .batch_tracker import BatchTracker
from .own_skips import OwnSkips

__all__ = ["WindowEnds"]


class WindowEnds:
    """Closes a healthy window, undoes a bad one, and judges deferred ones when their verdict is known."""

    def __init__(self, engine: Engine, bad: BadSteps, tracker: BatchTracker) -> None:
        self._engine, self._bad_steps, self._tracker = engine, bad, tracker
        self._state = engine.state
        self._own_skips = OwnSkips(engine, bad, tracker)

    def by_next_batch(self, loader: Any) -> None:
        """The loop asks this loader for its next batch, which ends the iteration of the last one."""
        window = self._tracker.over_by(loader)
        if window is not None:
            self._tracker.close(window)
            self.after(window, is_regular=True)
        elif not self._engine.has_world:  # the other ranks would not know of it
            self._own_skips.look(loader)

    def watch(self, loader: Any) -> None:
        """A loop over this loader begins."""
        self._own_skips.watch(loader)

    def after(self, window: Window, is_regular: bool) -> None:
        """End a window; `is_regular`: the loop went on to its next batch. If it was left instead, nothing is undone."""
        if not is_regular:
            self._bad_steps.undo.clear()
        if window.failure is not None:
            rates = self._rates_that_stay() if self._bad_steps.undo else None
            self._bad_steps.put_back()
            if rates is not None:
                self._state.set_lrs(rates)
            return
        if window.is_moved and self._engine.settings.deferred:
            self._collect(is_regular=is_regular)
            return
        self.close_healthy(window)

    def after_backward_of_next(self, window: Window) -> None:
        """End a window when the backward of the next iteration shows that it is over.

        Nothing is restored: the next forward has run already, and its graph needs the tensors as they are.
        """
        self._bad_steps.undo.clear()
        is_deferred = window.is_moved and self._engine.settings.deferred
        if window.failure is None and not is_deferred:
            self._engine.close_healthy(window, is_followed=True)
            self._note_scale(window)

    def close_healthy(self, window: Window) -> None:
        failure = self._engine.close_healthy(window)
        if self._state.scalers.refs:
            self._note_scale(window)
        if failure is not None:
            self._bad_steps.handle(window, failure)

    def _note_scale(self, window: Window) -> None:
        if window.num_applied and self._state.scalers.refs:
            self._engine.scale_watch.note_applied()

    def after_epoch(self) -> None:
        """Run a deep check at the end of an epoch, or request one if there are several ranks."""
        if self._engine.ranks.is_together:
            self._engine.deep_checks.request()
            return
        self.check_deeply(is_regular=True)

    def check_deeply(self, is_regular: bool) -> None:
        """Collect deferred steps, then run a deep check."""
        self._collect(is_last=True, is_regular=is_regular)
        if self._engine.log:
            last = self._engine.log[-1]
            failure = self._engine.deep_checks.run(last.step)
            if failure is not None:
                self._bad_steps.handle(last, failure)

    def _rates_that_stay(self) -> tuple[float, ...] | None:
        """The learning rates to keep: a loop that calls `next` itself may have set them for its next step."""
        if len(self._state.schedulers) or is_at_loop_head(sys._getframe(1)):
            return None
        return self._state.lrs()

    def _collect(self, is_last: bool = False, is_regular: bool = True) -> None:
        """Close the deferred steps that were finite; investigate the first that was not."""
        fine, bad, later = self._engine.deferral.collect(is_last)
        found = self._engine.deferral.close_fine(fine, bad)
        if found is not None:
            self._bad_steps.handle(*found)
            return
        if bad is None:
            if self._engine.deep_checks.must_wait:
                self._collect(is_last=True, is_regular=is_regular)
            return
        failure = self._engine.shared.late_failure(bad)
        if failure is not None:
            self._bad_steps.handle_late(bad, failure, later, is_regular)

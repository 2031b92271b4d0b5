"""Closes a window when the loop leaves its iteration."""

from __future__ import annotations

import sys

from ..engine import Engine
from ..frames import is_at_loop_head
from ..window import Window
from .bad_steps import BadSteps

__all__ = ["WindowEnds"]


class WindowEnds:
    """A healthy one is closed, a bad one undone; deferred ones are judged when their answers have come."""

    def __init__(self, engine: Engine, bad: BadSteps) -> None:
        self._engine, self._bad = engine, bad
        self._state = engine.state

    def after(self, window: Window, is_regular: bool) -> None:
        """`is_regular`: the loop went on to its next batch; else it was left, and what it did since
        then is not this iteration's."""
        if not is_regular:
            self._bad.undo.clear()
        if window.failure is not None:
            rates = self._rates_that_stay() if self._bad.undo else None
            self._bad.put_back()
            if rates is not None:
                self._state.set_lrs(rates)
            return
        if window.is_moved and self._engine.settings.deferred:
            self._collect(is_regular=is_regular)
            return
        self.close_healthy(window)

    def after_backward_of_next(self, window: Window) -> None:
        """It is over, as a backward shows; what the next iteration's forward has written by now is not
        this one's, and what its graph needs must not be moved: all else waits for the next end."""
        self._bad.undo.clear()
        is_deferred = window.is_moved and self._engine.settings.deferred
        if window.failure is None and not is_deferred:
            self._engine.close_healthy(window, is_followed=True)
            self._note_scale(window)

    def close_healthy(self, window: Window) -> None:
        failure = self._engine.close_healthy(window)
        if self._state.scalers.refs:
            self._note_scale(window)
        if failure is not None:
            self._bad.handle(window, failure)

    def _note_scale(self, window: Window) -> None:
        if window.num_applied and self._state.scalers.refs:
            self._engine.scale_watch.note_applied()

    def after_epoch(self) -> None:
        """A deep check; ranks come there at different times."""
        if self._engine.ranks.is_together:
            self._engine.deep_checks.request()
            return
        self.look_deeper(is_regular=True)

    def look_deeper(self, is_regular: bool) -> None:
        """All that is known by now: what was deferred, and the whole state."""
        self._collect(is_last=True, is_regular=is_regular)
        if self._engine.log:
            last = self._engine.log[-1]
            failure = self._engine.deep_checks.run(last.step)
            if failure is not None:
                self._bad.handle(last, failure)

    def _rates_that_stay(self) -> tuple[float, ...] | None:
        """A loop that calls `next` by itself may have set the rate of its next step before."""
        if len(self._state.schedulers) or is_at_loop_head(sys._getframe(1)):
            return None
        return self._state.lrs()

    def _collect(self, is_last: bool = False, is_regular: bool = True) -> None:
        """Deferred steps: close those that went well, look into the first that did not."""
        fine, bad, later = self._engine.deferral.collect(is_last)
        found = self._engine.deferral.close_fine(fine, bad)
        if found is not None:
            self._bad.handle(*found)
            return
        if bad is None:
            if self._engine.deep_checks.must_wait:
                self._collect(is_last=True, is_regular=is_regular)
            return
        failure = self._engine.shared.late_failure(bad)
        if failure is not None:
            self._bad.handle_late(bad, failure, later, is_regular)

"""Where no loader leads: loops that make their own batches, and loops that end in the middle."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from .body import Scene, scenes_of_frame
from .investigation import small_state
from .keeping import Before
from .stream import BatchStream
from .window import BatchRef, Window

__all__ = ["FreeLoop", "mark_called"]


class FreeLoop(BatchStream):
    """A window runs from one optimizer step to the next; what is over is told with what is known."""

    def abandon(self, scenes: list[Scene] | None = None) -> None:
        """The loop is over in the middle of something: finish the report with what is known."""
        self.core.ranks.leave()
        self._let_turn()
        window = self.window
        if self.active is None and (window is None or window.failure is None):
            if window is not None and window.num_applied:
                window.is_lost = True
                self._close(window)  # the loop broke off after its step
            if self.active is None:
                self._last_look()
        window = self.window
        if (
            self.active is None
            and window is not None
            and window.failure is None
            and window.suspects
            and not window.num_attempted
        ):
            window.failure = self.core.explain(window, [])  # it saw a NaN itself and gave up
            window.small_state = small_state(self.state)
        if self.active is None and self.window is not None and self.window.failure is not None:
            window, self.window = self.window, None
            window.is_lost = True
            # How it stood when it failed says more than how it stood when the script gave up.
            window.scenes = (*window.scenes[:4], *(scenes or ())[:4])
            self.num_batches = max(self.num_batches, window.step + 1)
            assert window.failure is not None
            self._begin(window, window.failure)
        for window, failure in self._waiting:
            if self.active is None:
                self._begin(window, failure)
        self._run_out()
        self.is_over = True

    def _last_look(self) -> None:
        """The last steps have not been looked at yet."""
        _, bad, _ = self.core.collect(is_last=True)
        late = self.core.late_failure(bad) if bad is not None else None
        if bad is not None and late is not None:
            bad.is_lost = True
            self._begin(bad, late)
            return
        if self.core.log:
            last = self.core.log[-1]
            failure = self.core.deep_check(last.step)
            if failure is not None:
                last.is_lost = True
                self._begin(last, failure)

    def _open_free(self) -> None:
        """No loader in sight: a window runs from one optimizer step to the next."""
        self._is_free = True
        self.before_window()
        self.core.prime()
        if not self.core.log and self.state.snapshot.is_taken:
            self.state.snapshot.retake_small(
                self.state.snapshot_slots()
            )  # the schedule's last step
        if self._stepped and all(id(o) in self._stepped for o in self.state.optimizers):
            self._new_turn()
        ref = BatchRef(self.num_batches, 0, [])
        self.window = Window(batches=[ref], rng=self._free_rng, lrs=self.state.lrs())

    _free_rng: Any = None

    def _new_turn(self) -> None:
        self._stepped.clear()
        self.num_batches += 1

    def _count_turn(self, window: Window, optimizer: Optimizer) -> None:
        """Without batches to count, a turn of the loop is over when one of its optimizers steps again."""
        if id(optimizer) in self._stepped:
            self._new_turn()
            ref = window.batches[-1]
            ref.step = self.num_batches
            window.losses = [(ref.step, t) for _, t in window.losses]
        self._stepped.add(id(optimizer))

    def _close_free(self) -> None:
        window, self.window = self.window, None
        assert window is not None
        failure = window.failure or self.core.close_healthy(window)
        self._is_free = False
        if failure is None:
            # The next window shows itself only when its forward is over.
            self._free_rng = self.core.open()
            return
        window.scenes = (*window.scenes[:4], *scenes_of_frame(sys._getframe(1)))
        self._begin(window, failure)
        window.scenes = ()
        self._free_rng = self.core.rng.capture()
        self._is_free = self.active is not None
        # A schedule that gives a bad rate once would give it for ever if it stood still.
        is_rate = not all(map(math.isfinite, window.lrs)) or failure.symptom == "learning_rate"
        self._holds_schedulers = failure.symptom != "scaler_skip" and not is_rate

    def _free_step(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """The step that ends a traced iteration; if that was healthy, it counts."""
        assert self.active is not None
        if self.active.wanted.is_applied:
            return self._free_advance(optimizer, call)
        self.active.result.is_complete = False  # this turn is another one than the one that failed
        is_healthy = not self.active.is_decided
        self._pass_done()
        self._is_free = self.active is not None
        if is_healthy and self.active is None:
            self._holds_schedulers = False
            result = call()
            self.state.shadow_buffers()
            self._free_rng = self.core.rng.capture()
            return result
        mark_called(optimizer)
        if not self._is_free:
            self._free_rng = self.core.rng.capture()
        return None

    def _free_advance(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """A turn of the way from the snapshot: it counts, unless it is the one that spoils the state."""
        active = self.active
        assert active is not None
        window = active.wanted.window
        window.rng, window.small_state = self._free_rng, small_state(self.state)
        window.scenes = scenes_of_frame(sys._getframe(1))
        before = Before()
        before.take(self.state, Window([]))
        result = active.on_step(optimizer, call, self._current.step)
        is_bad = active.is_decided
        if is_bad:
            before.restore()
            active.trace_step(call)
            before.restore()
            self.state.restore_buffers()
            mark_called(optimizer)
        self._pass_done()
        window.scenes = ()
        self._is_free = self.active is not None
        self._holds_schedulers = is_bad
        self.state.shadow_buffers()
        self._free_rng = self.core.rng.capture()
        return result


def mark_called(optimizer: Optimizer) -> None:
    """The scheduler warns when it moves before the optimizer; a skipped step is no reason to."""
    optimizer._opt_called = True  # type: ignore[attr-defined]

"""A bad step in a user's loop: investigated at once, undone when its iteration ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import FrameType

from ...patches.firewall import Firewall
from ...putting_back import put_back
from ..engine import Engine
from ..rng import RngState
from ..undo import versions_kept
from ..window import Failure, Verdict, Window
from .batch_tracker import BatchTracker

__all__ = ["BadSteps"]


class BadSteps:
    """Handles the bad steps of one loop.

    `internal_work`: a context in which the driver ignores events.
    """

    def __init__(
        self,
        engine: Engine,
        tracker: BatchTracker,
        internal_work: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.engine = engine
        self.state = engine.state
        self.firewall = Firewall("a look into a bad step")
        self.undo: list[Callable[[], None]] = []
        """Undo functions to call at the end of the iteration."""
        self._tracker = tracker
        self._internal_work = internal_work
        self._undo_companions: list[Callable[[], None]] = []
        """The same for objects that follow the training, with their state when the step was refused."""
        self._moved: list[Callable[[], None]] = []
        """Restores the scale that the scaler has come to in this iteration, although its batch is left out."""
        self._carried: list[Callable[[], None]] = []
        """Restores what the rest of the iteration writes to tensors that the loop carries on."""
        self._versions: list[int] = []
        """The weights' version counters when the step was refused."""

    def note_state(
        self, window: Window, failure: Failure, before_skip: Callable[[], None] | None
    ) -> None:
        """Note the rates, schedules and scale to return to; a replay begins before the scaler moved its scale."""
        now = self.state.capture_small()
        window.is_left_by_scaler = before_skip is not None and failure.symptom != "scaler_skip"
        self._moved = [now] if window.is_left_by_scaler else []
        window.small_state = before_skip or now
        self._versions = self._weight_versions()
        items = [item for ref in window.batches for _, item in ref.items]
        self._carried = self.firewall.once(self.engine.carried.restore, items, fallback=[])

    def handle(self, window: Window, failure: Failure) -> None:
        """Investigate; if that fails, restore the state from before the investigation."""
        undo = list(self.undo)
        after = window.rng.current() if window.rng is not None else RngState.now()
        with self._internal_work(), self._versions_kept():
            if (
                not self.firewall.once(self._investigate, window, failure)
                and window.failure is failure
            ):
                self.engine.replay = None
                self.undo = undo
                puts = (self.state.buffers.restore, window.small_state, after.restore)
                self.firewall.once(put_back, *(p for p in puts if p is not None))

    def _versions_kept(self) -> AbstractContextManager[None]:
        return versions_kept((p for _, p in self.state.parameters()), self.state.buffers)

    def _investigate(self, window: Window, failure: Failure) -> bool:
        incident, verdict = self.engine.handle(window, failure)
        is_back = incident is not None and incident.action.kind == "rolled_back"
        is_open = window is self._tracker.window
        if verdict.is_rebuilt and verdict.window is not window:
            self.undo.clear()
        else:
            self.plan(window, failure, verdict, is_back)
        self._redo(verdict, verdict.redo, window if is_open else None)
        if verdict.is_rebuilt and is_open and window.failure is not None:
            self.plan(window, failure, verdict, is_back)  # it was not repeated
        return True

    def _redo(self, verdict: Verdict, windows: list[Window], current: Window | None) -> None:
        """Repeat windows that ran on corrupted state, in order; one that is bad itself is skipped."""
        todo = list(windows)
        while todo and verdict.run_again is not None:
            old = todo.pop(0)
            again = verdict.run_again(old, old is current)
            if again is False:
                return
            if isinstance(again, Verdict):
                is_back = self._left_out_too(again, old is current)
                todo = again.redo if is_back else [*again.redo, *todo]
            elif old is current:
                self.undo.clear()

    def _left_out_too(self, verdict: Verdict, is_current: bool) -> bool:
        """Handle a repeated step that is bad as well; returns whether the policy rolled back."""
        incident = self.engine.conclude(verdict) if verdict.incident is not None else None
        is_back = incident is not None and incident.action.kind == "rolled_back"
        window = verdict.window
        if is_current and window is not None and window.failure is not None:
            self.plan(window, window.failure, verdict, is_back)
        return is_back

    def plan(
        self,
        window: Window,
        failure: Failure,
        verdict: Verdict | None = None,
        is_back: bool = False,
    ) -> None:
        """Plan the undo at the end of the iteration, after which it is as if its batch had never come."""
        undo: list[Callable[[], None]] = []
        if not _is_scalers(failure, verdict):
            # If the schedule were restored, the next step would get the same bad rate.
            if failure.symptom != "learning_rate":
                small = [] if is_back else self._moved
                undo = [*(small or [self.state.capture_small()]), *self.state.capture_averages()]
                if verdict is None and (
                    self.state.companions.holders or self.state.companions.twins
                ):
                    self._undo_companions = self.firewall.once(
                        self._capture_companions, sys._getframe(1), fallback=[]
                    )
                undo += self._undo_companions
            keeps = is_back or (verdict is not None and verdict.keeps_random_state)
            if not window.is_loaderless and not keeps and window.rng is not None:
                undo.append(window.rng.restore)
            if not is_back:
                undo.append(self._buffers_back(window))
            if not window.is_loaderless:  # else the next forward has run already
                undo += self._carried
        self.undo = undo

    def _buffers_back(self, window: Window) -> Callable[[], None]:
        """Restores what the rest of the iteration wrote: a second model may still run, as a generator after its critic.

        Without a loader this is called when the next forward has run already, and after a load the buffers belong
        to the loaded weights; then only what is not finite is restored.
        """
        buffers = self.state.buffers

        def undo() -> None:
            is_same = not window.is_loaderless and self._weight_versions() == self._versions
            (buffers.restore_layers if is_same else buffers.restore_bad)()

        return undo

    def _weight_versions(self) -> list[int]:
        return [-1 if p.is_inference() else p._version for _, p in self.state.parameters()]

    def _capture_companions(self, frame: FrameType) -> list[Callable[[], None]]:
        models = list(self.state.roots.values())
        return self.state.companions.capture(models, frame, self.engine.num_applied)

    def put_back(self) -> None:
        """Undo the rest of the iteration of a skipped step."""
        undo, self.undo, self._undo_companions = self.undo, [], []
        if undo:
            with (
                ExitStack() as stack
            ):  # even if preserving the version counters fails, values are restored
                self.firewall.once(lambda: stack.enter_context(self._versions_kept()))
                put_back(*undo)

    def handle_late(
        self, bad: Window, failure: Failure, later: list[Window], is_regular: bool
    ) -> None:
        """Handle a deferred step that turns out to be bad after later steps."""
        with self._internal_work(), self._versions_kept():
            incident, verdict = self.engine.handle(bad, failure)
            is_back = incident is not None and incident.action.kind == "rolled_back"
            if is_regular and not verdict.is_rebuilt:
                self._put_late_back(bad, keeps=is_back or verdict.keeps_random_state)
            self._redo(verdict, [*verdict.redo, *later], None)

    def _put_late_back(self, bad: Window, keeps: bool) -> None:
        """Restore rates and random state to before the bad batch."""
        if not len(self.state.schedulers):
            self.state.set_lrs(bad.lrs)
        if not keeps and not bad.is_loaderless and bad.rng is not None:
            bad.rng.restore()


def _is_scalers(failure: Failure, verdict: Verdict | None) -> bool:
    """Whether the step is left out by the GradScaler alone, which then moves its scale as ever."""
    if failure.symptom != "scaler_skip":
        return False
    incident = verdict.incident if verdict is not None else None
    return incident is None or incident.event.kind == "scale_collapse"

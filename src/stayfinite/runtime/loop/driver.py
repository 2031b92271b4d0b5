"""The driver of a user's own loop.

It checks each step before it is applied. A bad step is skipped and investigated at once; then the loop continues.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ...patches.firewall import Firewall
from ...patches.loaders import samples
from ...putting_back import put_back
from ..closures import ClosureSteps
from ..engine import Engine
from ..frames import codes_of_step
from ..outside_modes import outside_user_code
from ..ranks.shards import plain_norm
from ..saved_state import OptimizerCopy
from ..window import Failure, Window
from .bad_steps import BadSteps
from .batch_tracker import BatchTracker
from .loaderless import Loaderless
from .number_errors import failure_behind, is_about_numbers
from .ordinary import OrdinaryIteration
from .scaling import Scaling
from .validation import ValidationChecks
from .window_ends import WindowEnds

__all__ = ["LoopDriver"]


class LoopDriver:
    """Receives the events of one training loop: batches, backwards, optimizer steps."""

    def __init__(self, engine: Engine, counts_every_batch: bool) -> None:
        self.engine = engine
        self.state = engine.state
        self.tracker = BatchTracker(engine, counts_every_batch)
        self.is_over = False
        """Whether the driver is switched off."""
        self.thread_id = threading.get_ident()
        self.firewall = Firewall(
            "the protection of this training", self._give_up, lambda: engine.replay is not None
        )
        self._bad_steps = BadSteps(engine, self.tracker, self.internal_work)
        self.window_ends = WindowEnds(engine, self._bad_steps, self.tracker)
        self._validation = ValidationChecks(engine, self.tracker)
        self.loaderless = Loaderless(engine, self.tracker)
        engine.recovery.position = self.tracker.position
        engine.recovery.num_open = self.tracker.num_open
        self.on_close: Callable[[], None] | None = None
        """Removes the patches."""
        self._closures = ClosureSteps(self)
        self.scaling = Scaling(engine)
        self.was_stepped = False
        self.stepped_here: set[int] = set()
        self.is_internal = False
        self._is_deferred = engine.settings.deferred
        self.owns: Callable[[Any], bool] = self.state.optimizers.__contains__
        self.ordinary = OrdinaryIteration(self, self._bad_steps.handle)

    is_replaying = property(lambda self: self.engine.replay is not None)

    @property
    def num_steps(self) -> int:
        """The number of batches that the loop has trained on, or of its iterations."""
        window = self.tracker.window
        is_open = window is not None and window.num_attempted > 0
        return self.tracker.num_batches + (self.loaderless.is_under_way or is_open)

    wants_gradients = property(lambda self: self.loaderless.is_close and not self.is_internal)
    manual_updates: Any = None
    seed: Any = None

    def after_backward(self) -> None:
        self.loaderless.after_backward(self.tracker.window, sys._getframe(1))

    def before_window(self) -> None:
        """Called before a window opens; a driver that has to find the models does so now."""

    def _give_up(self) -> None:
        """Switch off after an error of our own; the training continues without protection."""
        self._switch_off()
        self.engine.replay = None
        put_back(self._bad_steps.put_back, *([] if self.on_close is None else [self.on_close]))

    def _switch_off(self) -> None:
        self.is_over = True
        self.state.num_changes += 1

    @contextlib.contextmanager
    def internal_work(self) -> Iterator[None]:
        """Ignore events in this block: they are caused by our own work, not by the loop."""
        was, self.is_internal = self.is_internal, True
        try:
            yield
        finally:
            self.is_internal = was

    def before_batch(self, loader: Any) -> None:
        """The loop asks for a batch, which ends its previous iteration over this loader."""
        if self.is_internal:
            return
        self.window_ends.by_next_batch(loader)

    draw: Callable[[Any, Callable[[], Any]], Any] | None = None
    """Not used here: the loop gets the batches of the loader itself."""

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        """Note this batch; False if a rollback skips it."""
        if self.is_internal:
            return True
        if self.engine.recovery.left_out.drops and self.tracker.drops_batch(loader, indices):
            return False
        if self.engine.replay is None:
            is_opening = self.tracker.window is None
            if is_opening:
                self.before_window()
            self.tracker.add(loader, batch, indices)
            if is_opening:
                self.ordinary.begin(loader)
        return True

    def on_loader_start(self, loader: Any) -> None:
        """A loader gets a new iterator; the loop may not have exhausted the last one."""
        if not self.is_internal and not self.is_replaying:
            self.tracker.begin_epoch(loader)
            self.window_ends.watch(loader, samples.iterator)

    def on_loader_end(self, loader: Any) -> None:
        """A loader is exhausted: check the last step of its epoch."""
        if self.is_internal:
            return
        if not self.ordinary.is_over_by(loader):
            self.before_batch(loader)
        self.tracker.forget(loader)
        if self.tracker.is_trained(loader):
            self.window_ends.after_epoch()
            self.tracker.end_epoch(loader)
        else:
            self._bad_steps.firewall.once(self._validation.check, sys._getframe(1))

    @outside_user_code
    def before_backward(self, loss: Tensor) -> bool | None:
        if self.is_internal or self.is_over:
            return None
        over = self.tracker.take_other() if self.tracker.other is not None else None
        if over is not None:
            self.window_ends.after_backward_of_next(over)
        window = self.window_now()
        if window.losses:
            self.tracker.drop_stale_losses(window)
        if loss.numel() == 1:
            self.engine.monitor.look(window, loss)
            step = self.tracker.note_used(window)
            plain = loss.detach() if self.scaling.pair is None else self.scaling.unscaled(loss)
            window.losses.append((step, plain))
            self.seed = self.engine.shared.seed(plain)
            if self.engine.ranks.is_adding_up():
                window.unsynced += (step,)
            window.live_loss = weakref.ref(loss)
            if window.is_loaderless:
                self.loaderless.note_backward(window, loss, sys._getframe(1))
        window.num_backward += 1
        return bool(window.saved_frames) and self.loaderless.can_keep(loss)

    def replay_backward(
        self, loss: Tensor, call: Callable[[], Any], keeping: Callable[[], Any]
    ) -> Any:
        replay = self.engine.replay
        if replay is None:
            return call()
        return replay.on_backward(loss, self.scaling.unscaled(loss), call, keeping)

    def on_clip(self, norm: Tensor) -> None:
        window = self.tracker.window
        if window is not None and not self.is_replaying and norm.dim() == 0:
            window.norm = plain_norm(norm.detach())

    def before_scale(self) -> None:
        """A loop without a loader has begun its next iteration; undo what a skipped step left behind."""
        if self.tracker.window is None and not self.is_internal and self.engine.replay is None:
            self._bad_steps.put_back()

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self.scaling.note(scaler, raw, scaled)

    def on_optimizer(self, optimizer: Any) -> None:
        self.state.add_optimizer(optimizer)
        if self.tracker.window is None and not self.num_steps:
            self.loaderless.may_begin()

    def on_scheduler(self, scheduler: Any) -> None:
        self.state.add_scheduler(scheduler)
        if not self.engine.num_applied:
            self.state.retake_small()  # it has set the learning rates of the first step

    def has_batch(self) -> bool:
        return (window := self.tracker.window) is not None and not window.is_loaderless

    def on_foreign_step(self) -> None:
        """Another training's optimizer steps: drop the losses since the last step, which were its own."""
        window = self.tracker.window
        if window is not None and not window.num_attempted and not self.is_replaying:
            window.losses.clear()

    def on_step_elsewhere(self, optimizer: Any) -> None:
        """An optimizer steps in another thread; with a guard, it still belongs to this training."""

    def release_others(self) -> None:
        """Stop tracking optimizers that another thread steps."""

    def may_step(self, optimizer: Any) -> bool:
        """Check a step; False if it must not be applied, in which case it has been investigated."""
        if self.is_internal or self.is_over:
            return True
        window = self.window_for(optimizer)
        self.engine.step_place.note()
        if window.failure is not None and not self.scaling.is_passed_by(window.failure):
            return window.failure.symptom == "scaler_skip"
        if self._is_deferred and self.engine.deferral.serves(optimizer):
            self.engine.deferral.arm(window, optimizer)
            return True
        if self.scaling.pair is None and "found_inf" not in vars(optimizer):
            failure = self.engine.check(window, optimizer)
        else:
            failure = self.scaling.check(window, optimizer)
        if failure is None:
            return True
        return self.leave_out(window, failure)

    def leave_out(self, window: Window, failure: Failure) -> bool:
        """Skip this step; True if the scaler does so itself."""
        self.engine.step_place.note()
        self.refuse(window, failure)
        self._bad_steps.firewall.once(self.end_refused, window)
        return failure.symptom == "scaler_skip"

    def window_for(self, optimizer: Any) -> Window:
        """The window in which this optimizer is about to step."""
        window = self.tracker.window or self._open_loaderless()
        self.state.num_changes += 1
        self.was_stepped = True
        self.stepped_here.add(id(optimizer))
        if window.is_loaderless:
            self.loaderless.count(window, optimizer)
        if window.ahead or not window.batches[-1].is_used:
            self.tracker.note_used(window)
        window.num_attempted += 1
        return window

    def window_now(self) -> Window:
        """The open window; opens one in a loop without a loader."""
        return self.tracker.window or self._open_loaderless()

    def undo_only(self, undo: Callable[[], None] | None) -> None:
        """Undo only this, for an iteration whose update is the script's own."""
        self._bad_steps.undo = [] if undo is None else [undo]

    def end_refused(self, window: Window) -> None:
        """End the window of a loop without a loader, which ends with its step."""
        if window.is_loaderless:
            self.close_loaderless(window)

    def on_step_done(self, optimizer: Any, is_done: bool) -> None:
        window = self.tracker.window
        if self.is_internal or window is None:
            return
        if self._is_deferred and self.engine.deferral.is_armed(optimizer):
            self.engine.deferral.submit(window, optimizer)
        elif is_done:
            window.num_applied += 1
        is_over = window.is_loaderless and (is_done or window.failure is not None)
        if is_over and not self.ordinary.is_over_by_step(window):
            self.close_loaderless(window)

    def undo_unless_fine(self, optimizer: Any) -> Callable[[], None] | None:
        """Check a step that cannot be prevented; returns its undo function if it is bad."""
        is_fine = self.is_internal or self.may_step(optimizer)
        if not self.is_internal:  # called from inside the optimizer's `step`
            self.engine.step_place.note(codes_of_step(optimizer))
        if is_fine:
            return None
        try:
            return OptimizerCopy.taken(optimizer).restore
        except Exception:  # out of memory, perhaps: without gradients the step changes nothing
            return self.state.take_grads(optimizer)

    def before_replayed_step(self, optimizer: Any) -> Callable[[], None] | None:
        """The same for a replay: returns the undo function unless the step is to be applied."""
        replay = self.engine.replay
        if replay is None or replay.begin_step():
            return None
        return OptimizerCopy.taken(optimizer).restore

    def after_replayed_step(self, optimizer: Any) -> None:
        if self.engine.replay is not None:
            self.engine.replay.end_step()

    def special_step(self, optimizer: Any, closure: Any, call: Callable[[Any], Any]) -> Any:
        """Run a step that belongs to a replay or evaluates a closure."""
        replay = self.engine.replay
        if replay is not None:
            if closure is not None:
                return replay.on_closure_step(optimizer, closure, call)
            return replay.on_optimizer_step(optimizer, lambda: call(closure))
        if self.is_internal or self.is_over:
            return call(closure)
        return self._closures.step(optimizer, closure, call)

    def on_scaler_step(self, scaler: Any, optimizer: Any, was_stepped: bool) -> None:
        """Called before (`was_stepped`) and after the scaler's step; after it, notices a skip."""
        self.scaling.is_stepping = was_stepped
        if was_stepped:
            self.was_stepped = False
            self.engine.shared.is_shared(optimizer)
            return
        if self.was_stepped or not scaler.is_enabled():
            return
        if self.engine.replay is not None:
            self.engine.replay.on_scaler_skip(optimizer)
            return
        window = self.tracker.window
        if window is None or self.is_internal or window.failure is not None:
            return
        self.window_for(optimizer)
        self.refuse(window, self.scaling.failure_of_skip(window))
        self.end_refused(window)

    def refuse(self, window: Window, failure: Failure) -> None:
        """Skip the step: note the current state, to which the loop returns, and investigate."""
        if failure.symptom == "scaler_skip" and self.scaling.leaves_out(window, failure):
            return
        if self.engine.has_world and self.engine.shared.is_another_ranks(failure):
            return
        self.release_others()
        if window.is_added_up and failure.symptom == "gradient":
            self.loaderless.check_each_backward()
        # If our code fails before this point, the step is applied unchecked. From here on it is skipped, even if the
        # investigation fails.
        self._bad_steps.note_state(window, failure, self.scaling.before_skip)
        self._bad_steps.plan(window, failure)
        window.is_moved = window.num_applied > 0
        window.failure = failure
        # The rest of the iteration (saving, validating) must not see what the bad forward wrote.
        if window.error is None or not window.is_moved:
            self._bad_steps.firewall.once(self.state.buffers.restore)
        self._bad_steps.firewall.once(self._bad_steps.handle, window, failure)

    def _open_loaderless(self) -> Window:
        self._bad_steps.put_back()
        self.before_window()
        self.engine.deep_checks.initialize()
        return self.ordinary.begin_loaderless(self.loaderless.open())

    def close_loaderless(self, window: Window) -> None:
        """Close a window after its step; the next one is noticed only at its backward."""
        self.tracker.window = None
        if window.failure is None:
            self.window_ends.close_healthy(window)
        self.loaderless.after_step()

    def on_error(self, error: BaseException) -> None:
        """The script ended with an exception: investigate whether a value was not finite."""
        window = self.tracker.window
        if self.is_over or (window is not None and window.failure is not None):
            return
        if window is None:
            if not is_about_numbers(error):
                return
            window = self._open_loaderless()  # its forward raised before there was a loss
            self.loaderless.all_stepped()
        self.tracker.note_used(window)
        failure = failure_behind(error, window, self.engine)
        if failure is None:
            return
        window.error = error
        window.num_attempted += 1
        self.engine.ranks.leave()
        self.refuse(window, failure)

    def finish(self) -> None:
        """The loop has ended, perhaps in the middle of an iteration: run a last check."""
        if self.is_over:
            return
        self.engine.ranks.leave()
        window, self.tracker.window = self.tracker.window, None
        if window is not None and window.num_attempted:
            self.tracker.close(window)
            self.window_ends.after(window, is_regular=False)
        self.window_ends.check_deeply(is_regular=False)
        self._switch_off()

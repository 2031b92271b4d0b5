"""The driver of a user's own loop, which runs once.

Each step is checked before it is applied; a bad one is skipped and investigated at once, and the loop goes on.
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
from ...putting_back import put_back
from ..closures import ClosureSteps
from ..engine import Engine
from ..frames import codes_of_step
from ..ranks.shards import plain_norm
from ..saved_state import OptimizerCopy
from ..unseen import unseen
from ..window import Failure, Window
from .bad_steps import BadSteps
from .batch_tracker import BatchTracker
from .loaderless import Loaderless
from .number_errors import failure_behind, is_about_numbers
from .ordinary import OrdinaryIteration
from .scaling import Scaling
from .validation import ValidationLooks
from .window_ends import WindowEnds

__all__ = ["LoopDriver"]


class LoopDriver:
    """Listens to one training loop."""

    def __init__(self, engine: Engine, counts_every_batch: bool) -> None:
        self.engine = engine
        self.state = engine.state
        self.tracker = BatchTracker(engine, counts_every_batch)
        self.is_over = False
        """Nothing is watched any more."""
        self.thread_id = threading.get_ident()
        self.firewall = Firewall(
            "the protection of this training", self._give_up, lambda: engine.replay is not None
        )
        self._bad = BadSteps(engine, self.tracker, self.own_work)
        self._ends = WindowEnds(engine, self._bad)
        self._validation = ValidationLooks(engine, self.tracker)
        self.loaderless = Loaderless(engine, self.tracker)
        engine.recovery.position = self.tracker.position
        engine.recovery.num_open = self.tracker.num_open
        self.on_close: Callable[[], None] | None = None
        """Takes the patches out."""
        self._closures = ClosureSteps(self)
        self.scaling = Scaling(engine)
        self.was_stepped = False
        self.stepped_here: set[int] = set()
        self.is_own_work = False
        self._is_deferred = engine.settings.deferred
        self.owns: Callable[[Any], bool] = self.state.optimizers.__contains__
        self.ordinary = OrdinaryIteration(self, self._bad.handle)

    is_replaying = property(lambda self: self.engine.replay is not None)

    @property
    def num_steps(self) -> int:
        """Batches that the loop has trained on, or iterations that it has made."""
        window = self.tracker.window
        is_open = window is not None and window.num_attempted > 0
        return self.tracker.num_batches + (self.loaderless.is_under_way or is_open)

    wants_gradients = False
    own_updates: Any = None
    seed: Any = None

    def after_backward(self) -> None:
        """Only where nobody's step looks at the gradients."""

    def before_window(self) -> None:
        """A window is about to open; a driver that has to find the models looks now."""

    def _give_up(self) -> None:
        """Something of ours has failed: the training goes on as if nobody watched."""
        self._end()
        self.engine.replay = None
        put_back(self._bad.put_back, *([] if self.on_close is None else [self.on_close]))

    def _end(self) -> None:
        self.is_over = True
        self.state.num_changes += 1

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """What is computed now is not the loop's doing."""
        was, self.is_own_work = self.is_own_work, True
        self.state.num_changes += 1
        try:
            yield
        finally:
            self.is_own_work = was

    def before_batch(self, loader: Any) -> None:
        """The loop asks for a batch: its last iteration over this loader is over."""
        if self.is_own_work:
            return
        window = self.tracker.over_by(loader)
        if window is not None:
            self.tracker.close(window)
            self._ends.after(window, is_regular=True)

    draw: Callable[[Any, Callable[[], Any]], Any] | None = None
    """The loop's batches are the loader's own."""

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        """The loop gets this batch, unless it is one that a rollback leaves out as well."""
        if self.is_own_work:
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
        """A new iterator of a loader; whoever knows its length may not have asked for its end."""
        if not self.is_own_work and not self.is_replaying:
            self.tracker.begin_epoch(loader)

    def on_loader_end(self, loader: Any) -> None:
        """A loader is through: a last look at what it was trained on."""
        if self.is_own_work:
            return
        if not self.ordinary.is_over_by(loader):
            self.before_batch(loader)
        self.tracker.forget(loader)
        if self.tracker.is_trained(loader):
            self._ends.after_epoch()
            self.tracker.end_epoch(loader)
        else:
            self._bad.looks.once(self._validation.look, sys._getframe(1))

    @unseen
    def before_backward(self, loss: Tensor) -> bool | None:
        if self.is_own_work or self.is_over:
            return None
        over = self.tracker.take_other() if self.tracker.other is not None else None
        if over is not None:
            self._ends.after_unseen(over)
        window = self.tracker.window
        if window is None:
            window = self._open_loaderless()
        if window.losses:
            self.tracker.drop_stale_losses(window)
        if loss.numel() == 1:
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
        return bool(window.standing) and self.loaderless.can_keep(loss)

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
        """A loop without a loader has begun its next iteration, whose loss the scale is for."""
        if self.tracker.window is None and not self.is_own_work and self.engine.replay is None:
            self._bad.put_back()

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self.scaling.note(scaler, raw, scaled)

    def on_optimizer(self, optimizer: Any) -> None:
        self.state.add_optimizer(optimizer)
        if self.tracker.window is None and not self.num_steps:
            self.loaderless.may_begin()

    def on_scheduler(self, scheduler: Any) -> None:
        self.state.add_scheduler(scheduler)
        if not self.engine.num_applied:
            self.state.retake_small()  # it has set the rates of the first step

    def has_batch(self) -> bool:
        return (window := self.tracker.window) is not None and not window.is_loaderless

    def on_foreign_step(self) -> None:
        """Somebody else's optimizer steps: the losses since the last step were its own."""
        window = self.tracker.window
        if window is not None and not window.num_attempted and not self.is_replaying:
            window.losses.clear()

    def on_step_elsewhere(self, optimizer: Any) -> None:
        """Called in another thread: one that a guard was given is this training's all the same."""

    def release_others(self) -> None:
        """Optimizers that another thread trains with are none of this training's."""

    def may_step(self, optimizer: Any) -> bool:
        """Whether this step is applied; one that is not has been looked into when this returns."""
        if self.is_own_work or self.is_over:
            return True
        window = self.window_for(optimizer)
        self.engine.step_place.note()
        if window.failure is not None:
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
        """This step is not applied, unless the scaler does that by itself."""
        self.engine.step_place.note()
        self.refuse(window, failure)
        self._bad.looks.once(self.end_refused, window)
        return failure.symptom == "scaler_skip"

    def window_for(self, optimizer: Any) -> Window:
        """The window that this optimizer is about to step in."""
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
        """The window that is open; in a loop without a loader one is opened."""
        return self.tracker.window or self._open_loaderless()

    def undo_only(self, undo: Callable[[], None] | None) -> None:
        """Of an iteration whose update is the script's own: this alone is undone."""
        self._bad.undo = [] if undo is None else [undo]

    def end_refused(self, window: Window) -> None:
        """A loop without a loader is over with its step, whether that was applied or not."""
        if window.is_loaderless:
            self.close_loaderless(window)

    def on_step_done(self, optimizer: Any, is_done: bool) -> None:
        window = self.tracker.window
        if self.is_own_work or window is None:
            return
        if self._is_deferred and self.engine.deferral.is_armed(optimizer):
            self.engine.deferral.submit(window, optimizer)
        elif is_done:
            window.num_applied += 1
        if window.is_loaderless and (is_done or window.failure is not None):
            self.close_loaderless(window)

    def undo_unless_fine(self, optimizer: Any) -> Callable[[], None] | None:
        """Where a step cannot be kept from being made: what takes it back, if it is a bad one."""
        is_fine = self.is_own_work or self.may_step(optimizer)
        if not self.is_own_work:  # such a step is seen from inside of the optimizer's own
            self.engine.step_place.note(codes_of_step(optimizer))
        if is_fine:
            return None
        try:
            return OptimizerCopy.taken(optimizer).restore
        except Exception:  # no memory, perhaps: a step without gradients moves nothing
            return self.state.take_grads(optimizer)

    def before_replayed_step(self, optimizer: Any) -> Callable[[], None] | None:
        """The same inside a replay: a step that is not to be applied is taken back."""
        replay = self.engine.replay
        if replay is None or replay.begin_step():
            return None
        return OptimizerCopy.taken(optimizer).restore

    def after_replayed_step(self, optimizer: Any) -> None:
        if self.engine.replay is not None:
            self.engine.replay.end_step()

    def special_step(self, optimizer: Any, closure: Any, call: Callable[[Any], Any]) -> Any:
        """A step inside a replay, or one that evaluates a closure by itself."""
        replay = self.engine.replay
        if replay is not None:
            if closure is not None:
                return replay.on_closure_step(optimizer, closure, call)
            return replay.on_optimizer_step(optimizer, lambda: call(closure))
        if self.is_own_work or self.is_over:
            return call(closure)
        return self._closures.step(optimizer, closure, call)

    def on_scaler_step(self, scaler: Any, optimizer: Any, was_stepped: bool) -> None:
        """Called before (`was_stepped`) and after the scaler's step."""
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
        if window is None or self.is_own_work or window.failure is not None:
            return
        self.window_for(optimizer)
        self.refuse(window, self.scaling.failure_of_skip(window))
        self.end_refused(window)

    def refuse(self, window: Window, failure: Failure) -> None:
        """The step is not applied; how it stands now is where the loop is put back to."""
        if failure.symptom == "scaler_skip" and self.scaling.passes_by():
            window.failure = failure
            return
        if self.engine.has_world and self.engine.shared.is_another_ranks(failure):
            return
        self.release_others()
        if window.is_added_up and failure.symptom == "gradient":
            self.loaderless.look_closely()
        # Until here an error of ours means that the step is made as in plain Python; from here on
        # it is left out, whatever becomes of the look into it.
        window.small_state = self.state.capture_small()
        self._bad.plan(window, failure)
        window.is_moved = window.num_applied > 0
        window.failure = failure
        # What the loop does from here on (saving, validating) must not see what the bad forward wrote.
        if window.error is None or not window.is_moved:
            self._bad.looks.once(self.state.buffers.restore)
        self._bad.looks.once(self._bad.handle, window, failure)

    def _open_loaderless(self) -> Window:
        self._bad.put_back()
        self.before_window()
        self.engine.prime()
        return self.loaderless.open()

    def close_loaderless(self, window: Window) -> None:
        """After the step: the next window shows itself only when its forward is over."""
        self.tracker.window = None
        if window.failure is None:
            self._ends.close_healthy(window)
        self.loaderless.after_step()

    def on_error(self, error: BaseException) -> None:
        """The script did not survive, or gave up: was it a value that is not finite?"""
        window = self.tracker.window
        if self.is_over or (window is not None and window.failure is not None):
            return
        if window is None:
            if not is_about_numbers(error):
                return
            window = self._open_loaderless()  # its forward has not come to a loss
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
        """The loop is over, perhaps in the middle of something: a last look."""
        if self.is_over:
            return
        self.engine.ranks.leave()
        window, self.tracker.window = self.tracker.window, None
        if window is not None and window.num_attempted:
            self.tracker.close(window)
            self._ends.after(window, is_regular=False)
        self._ends.look_deeper(is_regular=False)
        self._end()

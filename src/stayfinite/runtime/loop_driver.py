"""`for batch in guard(loader)` and `stayfinite run`: the user's own loop is the vehicle.

After a failed step the stream hands out the same batch again, traced, and the loop runs its body
again without knowing. Here is what the wires tell of that body.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..observe.counters import Numbers
from ..recover.snapshot import Snapshot
from .body import scenes_of_frame
from .deferred import in_memory
from .free import FreeLoop, mark_called
from .investigation import small_state
from .ranks import plain_norm
from .window import Failure, Window

__all__ = ["LoopDriver"]


class _Abort(Exception):
    """Leaves a closure-driven optimizer in the middle of its step."""


class LoopDriver(FreeLoop):
    """Drives one training loop; the listener of the wires."""

    def on_optimizer(self, optimizer: Optimizer) -> None:
        self.state.add_optimizer(optimizer)
        if self.window is None and not self.num_steps:
            self._free_rng = self.core.rng.capture()  # a loop without a loader may begin here

    def on_scheduler(self, scheduler: Any) -> None:
        self.state.add_scheduler(scheduler)

    def on_scheduler_step(self, scheduler: Any, call: Callable[[], Any]) -> Any:
        """A step that was not applied does not move the schedule either."""
        self.on_scheduler(scheduler)
        if self._holds_schedulers or (
            self.active is not None and not self.active.wanted.is_applied
        ):
            return None
        failure = self.window.failure if self.window is not None else None
        if failure is not None and failure.symptom == "learning_rate":
            # A schedule that gives a bad rate once would give it for ever if it stood still.
            self._moves.append(call)
            return None
        is_scaler_skip = failure is not None and failure.symptom == "scaler_skip"
        return call() if failure is None or is_scaler_skip else None

    def on_average(self, call: Callable[[], Any]) -> Any:
        """Nor does it move a running average of the weights."""
        if self.active is not None and not self.active.wanted.is_applied:
            return None
        failure = self.window.failure if self.window is not None else None
        return call() if failure is None or failure.symptom == "scaler_skip" else None

    def _take_aside(self) -> None:
        """The batch of another loader turns out to be trained on: it opens the next window."""
        if self._aside is None or not torch.is_grad_enabled():
            return
        ref, self._aside = self._aside, None
        window = self.window
        if window is not None:
            self.window = None
            self.num_batches += 1
            if window.failure is not None:
                self._waiting.append((window, window.failure))
            else:
                self.core.close_healthy(window)
        ref.step = self.num_batches
        self.state.shadow_buffers()
        self.window = Window(batches=[ref], rng=ref.rng, lrs=self.state.lrs())

    def before_backward(self, loss: Tensor) -> bool:
        """The ordinary case: note the loss and let the backward run; False for `on_backward`."""
        window = self.window
        if (
            window is None
            or self.active is not None
            or self._aside is not None
            or self._raw_loss is not None
            or self._holds_schedulers
            or self._is_own_work
            or self._is_free
            or window.ahead
            or loss.numel() != 1
        ):
            return False
        ref = window.batches[-1]
        ref.is_used = True
        window.losses.append((ref.step, loss))
        window.num_backward += 1
        return True

    def on_backward(self, loss: Tensor, call: Callable[[], Any]) -> Any:
        if self._is_own_work:
            return call()
        self._take_aside()
        if self.active is None:
            self._holds_schedulers = False
        if self.window is None and self.active is None:
            self._open_free()
        window = self.window
        if self.active is None and window is not None and window.ahead and not window.is_ahead:
            self._take_ahead(window)
        raw = self._raw_loss
        seen = raw[0] if raw is not None and raw[1] is loss else loss
        step = self._mark_used()
        if self.active is not None:
            self.active.before_backward(seen, step)
        elif self.window is not None and seen.numel() == 1:
            self.window.losses.append((step, seen.detach()))
            self.window.num_backward += 1
            if self._is_free:
                self._look_round(self.window, seen)
        result = call()
        if self.active is not None and raw is None:
            self.active.after_backward(step)
        return result

    def _look_round(self, window: Window, loss: Tensor) -> None:
        """Nobody hands this loop its batch again: if the loss is bad, remember what it came from.

        (With accumulation, another part of the batch is there by the time of the step.)
        """
        if not window.scenes and _is_bad_here(loss):
            window.scenes = scenes_of_frame(sys._getframe(1))
            window.root_call = self.last_call

    def _take_ahead(self, window: Window) -> None:
        """A second backward without a new batch between: several were drawn at once, one for each."""
        last = window.batches[-1]
        if not last.is_used:
            return
        drawn = [*window.ahead, last]
        window.is_ahead = True
        if len(window.batches) == 1:
            window.rng = drawn[0].rng
        for i, ref in enumerate(drawn):
            ref.step, ref.is_used = last.step + i, True
        window.batches[-1:] = drawn
        self.num_batches = drawn[-1].step

    def _mark_used(self) -> int:
        if self.active is not None:
            wanted, done = self.active.wanted.window, len(self.active.result.losses)
            return wanted.batches[min(done, len(wanted.batches) - 1)].step if wanted.is_ahead else self._current.step  # fmt: skip
        if self.window is None:
            return self.num_batches
        if self.window.is_ahead:
            done = min(len(self.window.losses), len(self.window.batches) - 1)
            return self.window.batches[done].step
        ref = self.window.batches[-1]
        ref.is_used = True
        return ref.step

    def on_clip(self, norm: Tensor) -> None:
        if self.window is not None and self.active is None and norm.dim() == 0:
            self.window.norm = plain_norm(norm.detach())

    def on_scale(self, scaler: Any, raw: Tensor, scaled: Tensor) -> None:
        self.state.add_scaler(scaler)
        self._raw_loss = (raw, scaled) if scaler.is_enabled() else None

    def on_scaler_step(self, scaler: Any, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """The scaler decides by itself; that it did not call the optimizer is the news."""
        self._step_called = False
        self.core.is_shared(optimizer)
        result = call()
        if not self._step_called and scaler.is_enabled():
            if self.active is not None:
                self.active.after_backward(self._current.step)
            elif self.window is not None:
                self._note_scaler_skip(self.window, optimizer)
        return result

    def _note_scaler_skip(self, window: Window, optimizer: Optimizer) -> None:
        if self._is_free:
            self._count_turn(window, optimizer)
        window.num_attempted += 1
        if window.failure is None:
            failure = self.core.ranks.agree(self.core.explain(window, []))
            window.failure = failure or Failure("scaler_skip", window.step)
            window.small_state = small_state(self.state)
        if self._is_free:
            self._close_free()

    def on_own_check(self, value: Tensor) -> None:
        if not value.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(value):
            return
        self._take_aside()
        if self.active is not None:
            self.active.own_check(value, self._current.step)
        elif self.window is not None:
            ref = self.window.batches[-1]
            ref.is_used = True
            seen = (ref.step, value.detach())
            self.window.suspects = (*self.window.suspects, seen)
            if self.window.failure is None and _is_bad_here(value):
                self.window.scenes = scenes_of_frame(sys._getframe(1))  # it may leave the loop now

    def before_step(self, optimizer: Optimizer) -> bool:
        """The ordinary case: look, and let the optimizer move; False for `on_optimizer_step`."""
        window = self.window
        if (
            window is None
            or self.active is not None
            or self._aside is not None
            or self._raw_loss is not None
            or self._is_free
            or self._is_own_work
            or window.failure is not None
            or window.num_attempted
            or (self.core.settings.deferred and self.core.is_deferred(optimizer))
            or optimizer not in self.state.optimizers
            or "found_inf" in optimizer.__dict__
        ):
            return False
        window.batches[-1].is_used = True
        failure = self.core.check(window, optimizer)
        if failure is not None:
            self._refuse(window, failure)
            return False
        self._step_called = True
        window.num_attempted = window.num_applied = 1
        return True

    def step_raised(self) -> None:
        """The optimizer that was let go did not come back."""
        if self.window is not None:
            self.window.num_applied -= 1

    def on_optimizer_step(
        self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]
    ) -> Any:
        if self._is_own_work:
            return call(closure)
        self._step_called = True
        if optimizer not in self.state.optimizers:
            self.state.add_optimizer(optimizer)
        if closure is not None:
            return self._closure_step(optimizer, closure, call)
        self._take_aside()
        if self.active is not None:
            return self._active_step(optimizer, lambda: call(None))
        if self.window is None:
            self._open_free()
        window = self.window
        assert window is not None
        if self._is_free:
            self._count_turn(window, optimizer)
        window.batches[-1].is_used = True
        window.num_attempted += 1
        if window.failure is None and self.core.is_deferred(optimizer):
            return self.core.step_deferred(window, optimizer, lambda: call(None))
        if self._is_bad(window, optimizer):
            mark_called(optimizer)
            if self._is_free:
                self._close_free()
            return None
        result = call(None)
        window.num_applied += 1
        if self._is_free:
            self._close_free()
        return result

    def _is_bad(self, window: Window, optimizer: Optimizer) -> bool:
        found = getattr(optimizer, "found_inf", None)
        if window.failure is None and found is not None and found.item():
            # A fused optimizer under a scaler is called even so, and skips by itself.
            failure = self.core.ranks.agree(self.core.explain(window, []))
            window.failure = failure or Failure("scaler_skip", window.step)
            window.small_state = small_state(self.state)
        if window.failure is None:
            is_scaled = self._raw_loss is not None
            if is_scaled and window.norm is None:
                failure = self._loss_only(window, optimizer)  # the scaler has passed the gradients
            else:
                failure = self.core.check(window, optimizer)
            if failure is not None:
                self._refuse(window, failure)
        # Another optimizer of this very batch may have moved already: then only going back helps.
        window.is_moved = window.num_applied > 0
        return window.failure is not None

    def _refuse(self, window: Window, failure: Failure) -> None:
        window.failure = failure
        window.small_state = small_state(self.state)
        if not self._is_free:
            self._numbers = Numbers.here()
            window.scenes = scenes_of_frame(sys._getframe(1))
        # What the loop does before it asks for the next batch (saving, validating) must
        # not see the buffers that the bad forward has written.
        self.state.restore_buffers()

    def _loss_only(self, window: Window, optimizer: Optimizer) -> Failure | None:
        if self.core.is_shared(optimizer):
            failure = self.core.check_together(window, optimizer, is_scaled=True)
            return failure or self.core.see(window)
        for step, loss in window.losses:
            value = loss.item()
            if not math.isfinite(value):
                return Failure("loss", step, value=value)
        return self.core.see(window)

    def _active_step(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        assert self.active is not None
        if self._turns is not None:
            self._turns.note_step()
        step = self._current.step
        self.active.after_backward(step)
        self.active.agree()
        if not self.active.wanted.is_applied:
            self.state.restore_buffers()
        if self._is_free:
            return self._free_step(optimizer, call)
        mark_called(optimizer)
        return self.active.on_step(optimizer, call, step)

    def _closure_step(self, optimizer: Optimizer, closure: Any, call: Callable[[Any], Any]) -> Any:
        """The optimizer evaluates the loss itself, once (Lightning) or many times (LBFGS)."""
        if not isinstance(optimizer, torch.optim.LBFGS):
            with torch.enable_grad():
                loss = closure()
            return self.on_optimizer_step(optimizer, None, lambda _: call(lambda: loss))
        before = Snapshot()
        own, self.state.snapshot = self.state.snapshot, before
        self.state.take_snapshot(0)
        self.state.snapshot = own
        found: list[Failure] = []
        losses: list[Any] = []

        def watched() -> Any:
            loss = closure()
            losses.append(loss)
            window = self.window
            if self.active is not None:
                self.active.after_backward(self._current.step)
                self.active.agree()
                if self.active.is_decided:
                    raise _Abort
            elif window is not None:
                window.losses = window.losses[-1:]
                failure = self.core.check(window, optimizer)
                if failure is not None:
                    found.append(failure)
                    raise _Abort
            return loss

        result = self._run_closure(optimizer, watched, call, before, found)
        # LBFGS gives the first evaluation's loss; the loop is used to that.
        return result if result is not None or not losses else losses[0]

    def _run_closure(
        self, optimizer: Optimizer, watched: Any, call: Callable[[Any], Any], before: Snapshot,
        found: list[Failure],
    ) -> Any:  # fmt: skip
        if self.window is None and self.active is None:
            self._open_free()
        if self._is_free and self.window is not None:
            self._count_turn(self.window, optimizer)
        try:
            result = call(watched)
        except _Abort:
            before.restore()
            result = None
        if self.active is not None:
            if not self.active.wanted.is_applied:
                before.restore()
            if self._is_free:
                self._pass_done()
            return result
        window = self.window
        if window is not None:
            window.num_attempted += 1
            if found:
                window.failure, window.small_state = found[0], small_state(self.state)
            else:
                window.num_applied += 1
        if self._is_free:
            self._close_free()
        return result


def _is_bad_here(number: Tensor) -> bool:
    """Whether a number in the host's memory is not finite; elsewhere nobody waits for the answer."""
    if type(number) is not Tensor or not number.is_cpu or not number.is_floating_point():
        return False
    return not math.isfinite(in_memory(number))

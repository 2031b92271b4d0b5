"""Drives `guard.step`: the guard owns the step and can repeat it."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import StayfiniteError
from ...patches.firewall import Firewall
from ...patches.loaders import samples
from ...putting_back import put_back
from ...records import Incident
from ..closures import Abort
from ..engine import Engine
from ..ranks.shards import plain_norm
from ..saved_state import OptimizerCopy, SearchPoint
from ..undo import versions_kept
from ..window import BatchRef, Failure, Window
from .parts import LossFn, StepParts
from .plain import PlainStep
from .schedule import Schedule

__all__ = ["Outcome", "StepDriver"]


@dataclass(slots=True, eq=False, repr=False)
class Outcome:
    """The result of one `guard.step`. Reading `.loss` or `.grad_norm` syncs with the device; the step does not."""

    step: int
    """The number of the batch, from 0."""
    _loss: Tensor | float | None
    _owner: StepDriver
    _norm: Tensor | None
    applied: bool
    """Whether the optimizer has made the step."""
    incident: Incident | None = None
    """The explanation of a bad step; None after a good one, and after a normal skip of the GradScaler."""

    @property
    def loss(self) -> float:
        """The loss of this step; NaN or Inf if the step was bad."""
        return float(self._loss) if self._loss is not None else math.nan

    @property
    def grad_norm(self) -> float | None:
        """The total gradient norm (before clipping); read it before the next step."""
        return float(self._norm) if self._norm is not None else self._owner.grad_norm(self.step)

    def __repr__(self) -> str:
        state = "applied" if self.applied else "skipped"
        return f"Outcome(step={self.step}, loss={self.loss:.6g}, {state})"


class StepDriver:
    """Runs steps of one model and one optimizer."""

    def __init__(
        self, engine: Engine, model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any,
        clip_norm: float | None,
    ) -> None:  # fmt: skip
        self.engine = engine
        enabled = scaler if scaler is not None and scaler.is_enabled() else None
        self.parts = StepParts(model, optimizer, enabled, clip_norm, Schedule(scheduler))
        self.num_batches = 0
        self.epoch = 0
        self.firewall = Firewall("the protection of guard.step")
        self._investigation_firewall = Firewall("a look into a bad step")
        self._plain: PlainStep
        self._copy: OptimizerCopy | None = None

    def step(self, loss_fn: LossFn, batch: Any) -> Outcome:
        """Run one step: forward, backward, check, and apply it if it is finite.

        An error in stayfinite's own code does not end the training: the rest of this step, and all later
        steps, run as plain PyTorch.
        """
        plain = self._plain = PlainStep(self.parts, loss_fn, batch)
        number = self.num_batches
        if not self.firewall.is_down:
            try:
                return self._step(loss_fn, batch)
            except StayfiniteError:
                raise
            except Exception as error:
                if plain.is_user_code:
                    raise
                self.firewall.fail(error)
        self.num_batches = number + 1
        if plain.refused is None:
            plain.finish()
        else:
            self._undo(plain.refused)
        return Outcome(number, plain.loss, self, None, plain.is_applied)

    def _undo(self, window: Window) -> None:
        """Restore the state from before this window, after an investigation that failed to do so."""
        self.engine.replay = None
        restore = window.rng.restore if window.rng is not None else None
        puts = (self.engine.state.buffers.restore, window.small_state, restore)
        self._investigation_firewall.once(put_back, *(p for p in puts if p is not None))

    def _investigate(
        self, window: Window, failure: Failure
    ) -> tuple[Incident | None, Outcome | None]:
        found: Any = self._investigation_firewall.once(self._handle, window, failure)
        if found is None:
            self._undo(window)
        return found or (None, None)

    def _step(self, loss_fn: LossFn, batch: Any) -> Outcome:
        engine, parts = self.engine, self.parts
        if parts.schedule.is_waiting:
            parts.schedule.before_step()
        late = self._collect() if engine.deferral.is_under_way else None
        ref = BatchRef(self.num_batches, self.epoch, [(_no_loader, batch)])
        ref.loss_fn = loss_fn
        ref.indices = samples.of_batch
        left_out = engine.recovery.left_out
        if left_out.drops and left_out.drops_batch(ref.step, ref.indices, None):
            self.num_batches += 1
            return Outcome(ref.step, None, self, None, False, late)
        window = Window([ref], engine.open(), engine.state.lrs())
        self.num_batches += 1
        failure = self._attempt(window)
        outcome = self._finish(window, failure)
        if outcome.incident is None:
            outcome.incident = late
        return outcome

    def _finish(self, window: Window, failure: Failure | None) -> Outcome:
        """Act on the outcome of an attempt."""
        incident: Incident | None = None
        engine, schedule = self.engine, self.parts.schedule
        applied = failure is None and window.num_applied > 0
        if failure is None:
            if applied and schedule.is_ours is not False:
                self._plain.move_schedule()
            if window.is_moved:
                return self._outcome(window, applied, None)  # deferred: it is judged later
            if applied and self.parts.scaler is not None:
                engine.scale_watch.note_applied()
            failure = engine.close_healthy(window)
            if failure is None:
                return self._outcome(window, applied, None)
            incident, again = self._handle(window, failure)
            return again or self._outcome(window, window in engine.log, incident)
        self._plain.refused = window
        is_normal_skip = failure.symptom == "scaler_skip" and engine.scale_watch.passes_by(
            engine.state.scale() or 1.0
        )
        if is_normal_skip:
            return self._outcome(window, False, None)
        incident, again = self._investigate(window, failure)
        if self.parts.scaler is not None:
            self.parts.scaler._per_optimizer_states.clear()  # as after its `update`
        if failure.symptom == "learning_rate" and schedule.is_ours is not False:
            schedule.after_step()  # else the next step gets the same bad rate
        return again or self._outcome(window, False, incident)

    def _collect(self, is_last: bool = False) -> Incident | None:
        """Close the deferred steps that were finite; investigate the first that was not."""
        fine, bad, later = self.engine.deferral.collect(is_last)
        found = self.engine.deferral.close_fine(fine, bad)
        if found is not None:
            return self._handle(*found)[0]
        if bad is None:
            return self._collect(is_last=True) if self.engine.deep_checks.must_wait else None
        late = self.engine.shared.late_failure(bad)
        return self._handle(bad, late, later)[0] if late is not None else None

    def flush(self) -> None:
        """At the end of an epoch or of the run: a last deep check, on each rank separately."""
        self.engine.ranks.leave()
        self.parts.schedule.before_step()
        self.firewall.call(self._last_deep_check)

    def _last_deep_check(self) -> None:
        self._collect(is_last=True)
        if self.engine.log:
            last = self.engine.log[-1]
            failure = self.engine.deep_checks.run(last.step)
            if failure is not None:
                self._handle(last, failure)

    def _outcome(self, window: Window, applied: bool, incident: Incident | None) -> Outcome:
        loss: Tensor | float | None = window.loss
        if loss is None and window.losses:
            loss = window.losses[-1][1].detach()
        return Outcome(window.batches[-1].step, loss, self, window.norm, applied, incident)

    def grad_norm(self, step: int) -> float | None:
        """The norm of the current gradients, if they are still those of `step`."""
        grads = [g.detach() for _, g in self.engine.state.grads([self.parts.optimizer])]
        if not grads or step != self.num_batches - 1:
            return None
        return float(torch.nn.utils.get_total_norm(grads))

    def _attempt(self, window: Window) -> Failure | None:
        parts, engine, plain = self.parts, self.engine, self._plain
        if parts.needs_closure:
            return self._attempt_closure(window)
        batch = window.batches[0]
        value = batch.value
        plain.is_user_code = True
        parts.optimizer.zero_grad(set_to_none=True)
        try:
            plain.loss = loss = batch.loss_fn(parts.model, value)
        except Exception as error:
            return self._explain_error(window, error)
        plain.is_user_code = False
        parts.check_loss(loss)
        window.losses = [(batch.step, loss.detach())]
        window.num_backward = 1
        window.live_loss = weakref.ref(loss)
        engine.monitor.look(window, loss)
        if parts.scaler is not None:
            return self._scaled_attempt(window, loss)
        seed = engine.shared.seed(loss) if engine.has_world else None
        plain.is_user_code = True
        loss.backward(seed)
        plain.is_user_code = False
        plain.is_backward = True
        if parts.clip_norm is not None:
            self._clip(window)
        window.num_attempted = 1
        if engine.settings.deferred and engine.deferral.serves(parts.optimizer):
            engine.deferral.arm(window, parts.optimizer)
            plain.apply()
            engine.deferral.submit(window, parts.optimizer)
            return None
        failure = engine.check(window, parts.optimizer)
        if failure is not None:
            window.small_state = engine.state.capture_small()
            return failure
        plain.apply()
        window.num_applied = 1
        return None

    def _scaled_attempt(self, window: Window, loss: Tensor) -> Failure | None:
        plain = self._plain
        seed = self.engine.shared.seed(loss)
        plain.is_user_code = True
        self.parts.scaler.scale(loss).backward(seed)
        plain.is_user_code = False
        plain.is_backward = True
        self._clip(window)
        return self._scaler_step(window)

    def _explain_error(self, window: Window, error: Exception) -> Failure | None:
        """Turn an exception into a failure if the state is not finite: sampling from NaN probabilities raises."""
        engine = self.engine
        if engine.ranks.is_shared(self.parts.optimizer):
            raise error  # the other ranks are in their backward; nothing can be decided with them
        bad = self.firewall.call(engine.state.bad_state, fallback=[])
        if not bad:
            raise error
        self._plain.is_user_code = False
        window.error = error
        window.small_state = engine.state.capture_small()
        return Failure("loss", window.step, name=bad[0][1])

    def _clip(self, window: Window) -> None:
        norm = self._plain.clip()
        if norm is not None:
            window.norm = plain_norm(norm)

    def _scaler_step(self, window: Window) -> Failure | None:
        """With a GradScaler: use its verdict on the gradients, and check only the loss."""
        parts, engine = self.parts, self.engine
        failure = self._bad_loss(window) or engine.compare(window)
        if failure is not None:
            window.small_state = engine.state.capture_small()
            parts.scaler._per_optimizer_states.clear()
            return failure
        state = parts.scaler._per_optimizer_states[id(parts.optimizer)]
        found = sum(v.item() for v in state["found_inf_per_device"].values())
        if found:
            window.small_state = engine.state.capture_small()
        self._plain.apply()
        if found:
            return Failure("scaler_skip", window.step)
        window.num_applied = 1
        return None

    def _bad_loss(self, window: Window) -> Failure | None:
        optimizer = self.parts.optimizer
        if self.engine.shared.is_shared(optimizer):
            # The scaler has already reduced the verdict on the gradients over the ranks.
            return self.engine.shared.check(window, optimizer, is_scaled=True)
        value = float(window.losses[0][1])
        return None if math.isfinite(value) else Failure("loss", window.step, value=value)

    def _attempt_closure(self, window: Window) -> Failure | None:
        """LBFGS: the closure runs many times; a bad evaluation ends the step, which is undone."""
        parts, batch = self.parts, window.batches[0]
        self._copy = self._copy or OptimizerCopy(parts.optimizer)
        self._copy.take()
        found: list[Failure] = []
        plain = self._plain
        plain.is_user_code = True  # any exception leaves the optimizer's search

        def closure() -> Tensor:
            parts.optimizer.zero_grad(set_to_none=True)
            loss = parts.loss(batch.loss_fn, batch.value)
            window.losses = [(batch.step, loss.detach())]
            loss.backward(self.firewall.call(self.engine.shared.seed, loss))
            plain.is_clipped = False
            self._clip(window)
            failure = self.firewall.call(self.engine.check, window, parts.optimizer)
            if failure is not None:
                found.append(failure)
                raise Abort
            return loss

        try:
            parts.optimizer.step(closure)
        except Abort:
            plain.is_user_code = False
            window.search_point = SearchPoint.of(parts.optimizer)
            self._copy.restore()
            window.small_state = self.engine.state.capture_small()
            return found[0]
        plain.is_user_code = False
        plain.is_applied = True
        window.num_applied = 1
        return None

    def _handle(
        self, window: Window, failure: Failure, later: list[Window] | None = None
    ) -> tuple[Incident | None, Outcome | None]:
        again: Outcome | None = None
        schedule, engine = self.parts.schedule, self.engine
        weights = (p for _, p in engine.state.parameters())
        with schedule.left_alone(), versions_kept(weights, engine.state.buffers):
            incident, verdict = engine.handle(window, failure)
            if incident is not None and incident.action.kind == "rolled_back":
                schedule.keep_as_it_is()
            redo = [] if engine.ranks.has_left else [*verdict.redo, *(later or [])]
            for old in redo:
                again = self._redo(old)
                if again.incident is None:
                    again.incident = incident
        return incident, again

    def _redo(self, old: Window) -> Outcome:
        """Run a window again that ran on corrupted state."""
        engine = self.engine
        batch = old.batches[0]
        now = self._plain  # the current step may not have begun
        self._plain = PlainStep(self.parts, batch.loss_fn, batch.value)
        fresh = Window(old.batches, engine.rng.capture(), old.lrs)
        if not self.parts.schedule.is_ours:
            engine.state.set_lrs(old.lrs)
        engine.state.buffers.copy(is_kept=engine.deferral.is_waiting)
        try:
            with old.around():
                failure = self._attempt(fresh)
            return self._finish(fresh, failure)
        finally:
            self._plain = now


def _no_loader() -> None:
    """`guard.step` gets a batch, not a loader."""

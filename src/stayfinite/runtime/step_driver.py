"""`guard.step(loss_fn, batch)`: the guard owns the step, so it can run it again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import UsageError
from ..observe.labels import without_labels
from ..observe.witness import witness
from ..records import Incident
from .core import Core
from .investigation import Investigation, Verdict, small_state
from .passes import ActivePass, drive
from .ranks import plain_norm
from .schedule import Schedule
from .window import BatchRef, Failure, Pass, PassResult, Window

__all__ = ["Outcome", "Stepper"]

LossFn = Callable[[Any, Any], Tensor]


class Outcome:
    """What one `guard.step` did. Reading `.loss` or `.grad_norm` is what syncs, not the step."""

    __slots__ = ("_loss", "_norm", "_owner", "applied", "incident", "step")

    def __init__(
        self,
        step: int,
        loss: Tensor | float | None,
        owner: Stepper,
        norm: Tensor | None,
        applied: bool,
        incident: Incident | None = None,
    ) -> None:
        self.step = step
        self.applied = applied
        self.incident = incident
        self._loss = loss
        self._norm = norm
        self._owner = owner

    @property
    def loss(self) -> float:
        """The loss of this step, NaN or Inf if it went bad."""
        return float(self._loss) if self._loss is not None else math.nan

    @property
    def grad_norm(self) -> float | None:
        """The total gradient norm (before clipping); read it before the next step."""
        return float(self._norm) if self._norm is not None else self._owner.grad_norm(self.step)

    def __repr__(self) -> str:
        what = "applied" if self.applied else "skipped"
        return f"Outcome(step={self.step}, loss={self.loss:.6g}, {what})"


class _Abort(Exception):
    """Leaves a closure-driven optimizer (LBFGS) in the middle of its step."""


class Stepper:
    """Runs steps of one model and one optimizer."""

    def __init__(
        self, core: Core, model: nn.Module, optimizer: Optimizer, scheduler: Any, scaler: Any,
        clip_norm: float | None,
    ) -> None:  # fmt: skip
        self.core = core
        self.model = model
        self.optimizer = optimizer
        self.scaler: Any = scaler if scaler is not None and scaler.is_enabled() else None
        self.clip_norm = clip_norm
        self.num_batches = 0
        self.epoch = 0
        self._did_step = False
        self._schedule = Schedule(scheduler)
        self._needs_closure = isinstance(optimizer, torch.optim.LBFGS)
        self._is_plain = scheduler is None and self.scaler is None
        self._hook = (
            optimizer.register_step_post_hook(self._note_step) if self.scaler is not None else None
        )

    def _note_step(self, optimizer: Optimizer, *args: Any) -> None:
        # A fused optimizer is called even when the scaler found an Inf; it then skips by itself.
        found = getattr(optimizer, "found_inf", None) if self.scaler is not None else None
        self._did_step = found is None or not found.item()

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def step(self, loss_fn: LossFn, batch: Any) -> Outcome:
        """One whole step: forward, backward, check, apply or not."""
        core = self.core
        if self._schedule.is_waiting:
            self._schedule.before_step()
        late = self._collect() if core.is_deferring else None
        rng = core.open()
        ref = BatchRef(self.num_batches, self.epoch, [(None, batch)])
        ref.loss_fn = loss_fn
        ref.indices = witness.batch_indices
        if core.recovery.drops and core.recovery.drops_batch(ref, None):
            self.num_batches += 1
            return Outcome(ref.step, None, self, None, False, late)
        window = Window([ref], rng, core.state.lrs())
        self.num_batches += 1
        failure = self._attempt(window)
        if failure is None and window.num_applied and self._is_plain and not window.is_moved:
            failure = core.close_healthy(window)
            if failure is None:
                return Outcome(ref.step, window.loss, self, window.norm, True)
            incident, again = self._handle(window, failure)
            return again or self._outcome(window, window in core.log, incident)
        outcome = self._run(window, failure)
        if outcome.incident is None:
            outcome.incident = late
        return outcome

    def _collect(self, is_last: bool = False) -> Incident | None:
        """Deferred steps: close those that went well, look into the first that did not."""
        fine, bad, later = self.core.collect(is_last)
        for window in fine:
            window.is_moved = False
            failure = self.core.close_healthy(window)
            if failure is not None:
                return self._handle(window, failure)[0]
        if bad is None:
            return None
        failure = self.core.late_failure(bad)
        return self._handle(bad, failure, later)[0] if failure is not None else None

    def flush(self) -> None:
        """The end of an epoch or of the run: a last deep check, each rank for itself."""
        self.core.ranks.leave()
        self._schedule.before_step()
        self._collect(is_last=True)
        if self.core.log:
            last = self.core.log[-1]
            failure = self.core.deep_check(last.step)
            if failure is not None:
                self._handle(last, failure)

    def _run(self, window: Window, failure: Failure | None) -> Outcome:
        """What follows from an attempt."""
        incident = None
        if failure is None:
            applied = window.num_applied > 0
            if applied:
                if self._schedule.is_ours is not False:
                    self._schedule.after_step()
                if self.scaler is not None:
                    self.core.scale_watch.note_applied()
            if window.is_moved:
                return self._outcome(window, applied, None)  # its verdict comes later
            failure = self.core.close_healthy(window)
            if failure is not None:
                incident, again = self._handle(window, failure)
                return again or self._outcome(window, window in self.core.log, incident)
            return self._outcome(window, applied, None)
        if failure.symptom == "scaler_skip" and self.core.passes_by_skip():
            return self._outcome(window, False, None)
        incident, again = self._handle(window, failure)
        if failure.symptom == "learning_rate" and self._schedule.is_ours is not False:
            self._schedule.after_step()  # it would give the same bad rate for ever
        if again is not None:
            return again
        return self._outcome(window, False, incident)

    def _outcome(self, window: Window, applied: bool, incident: Incident | None) -> Outcome:
        loss: Tensor | float | None = window.loss
        if loss is None and window.losses:
            loss = window.losses[-1][1].detach()
        return Outcome(window.batches[-1].step, loss, self, window.norm, applied, incident)

    def grad_norm(self, step: int) -> float | None:
        """The norm of the gradients that are there now, if they are still those of `step`."""
        grads = [g.detach() for _, g in self.core.state.grads([self.optimizer])]
        if not grads or step != self.num_batches - 1:
            return None
        return float(torch.nn.utils.get_total_norm(grads))

    # -- one attempt -----------------------------------------------------------------------------

    def _attempt(self, window: Window) -> Failure | None:
        if self._needs_closure:
            return self._attempt_closure(window)
        batch = window.batches[0]
        without_labels(self.optimizer.zero_grad, set_to_none=True)
        try:
            loss = self._loss(batch.loss_fn, batch.value)
        except UsageError:
            raise
        except Exception:
            if self.core.ranks.is_shared(self.optimizer):
                raise  # the other ranks are in their backward; nothing can be decided with them
            # Sampling from NaN probabilities raises before there is a loss to look at.
            bad = self.core.state.bad_state()
            if not bad:
                raise
            window.small_state = small_state(self.core.state)
            return Failure("loss", batch.step, name=bad[0][1])
        window.losses = [(batch.step, loss)]
        if self.scaler is not None:
            window.losses = [(batch.step, loss.detach())]
            self._backward(loss)
            self._clip(window)
            return self._scaler_step(window)
        loss.backward()
        if self.clip_norm is not None:
            self._clip(window)
        if self.core.settings.deferred and self.core.is_deferred(self.optimizer):
            call = functools.partial(without_labels, self.optimizer.step)
            self.core.step_deferred(window, self.optimizer, call)
            return None
        failure = self.core.check(window, self.optimizer)
        if failure is not None:
            window.small_state = small_state(self.core.state)
            return failure
        without_labels(self.optimizer.step)
        window.num_applied = 1
        return None

    def _loss(self, loss_fn: LossFn, batch: Any) -> Tensor:
        loss = loss_fn(self.model, batch)
        if type(loss) is Tensor and not loss.dim() and loss.requires_grad:
            return loss
        if not isinstance(loss, Tensor):
            raise UsageError(
                f"loss_fn must return a tensor, got {type(loss).__name__}; "
                "return the scalar loss, not a number or a tuple"
            )
        if loss.numel() != 1:
            raise UsageError(
                f"loss_fn must return a scalar, got shape {tuple(loss.shape)}; "
                "reduce it, for instance with .mean()"
            )
        if not loss.requires_grad:
            raise UsageError(
                "the loss needs no gradient: nothing in it depends on a parameter that requires "
                "grad; look for .detach(), torch.no_grad() or frozen parameters"
            )
        return loss

    def _backward(self, loss: Tensor) -> None:
        (self.scaler.scale(loss) if self.scaler is not None else loss).backward()

    def _clip(self, window: Window) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip_norm is not None:
            params = [p for g in self.optimizer.param_groups for p in g["params"]]
            window.norm = plain_norm(torch.nn.utils.clip_grad_norm_(params, self.clip_norm))

    def _scaler_step(self, window: Window) -> Failure | None:
        """With a GradScaler its own verdict on the gradients is used; only the loss is added."""
        batch = window.batches[0]
        failure = self._bad_loss(window) or self.core.see(window)
        if failure is not None:
            window.small_state = small_state(self.core.state)
            self.scaler._per_optimizer_states.clear()
            return failure
        self._did_step = False
        self.scaler.step(self.optimizer)
        if self._did_step:
            self.scaler.update()
            window.num_applied = 1
            return None
        window.small_state = small_state(self.core.state)
        self.scaler.update()
        return Failure("scaler_skip", batch.step)

    def _bad_loss(self, window: Window) -> Failure | None:
        if self.core.is_shared(self.optimizer):
            # The gradients' share of the verdict the scaler has reduced over the ranks itself.
            window.norm, norm = None, window.norm
            failure = self.core.check_together(window, self.optimizer, is_scaled=True)
            window.norm = norm
            return failure
        if math.isfinite(window.losses[0][1].item()):
            return None
        return Failure("loss", window.step, value=float(window.losses[0][1]))

    def _attempt_closure(self, window: Window) -> Failure | None:
        """LBFGS: the closure runs many times; a bad one ends the step and undoes it."""
        core, batch = self.core, window.batches[0]
        core.state.take_snapshot(batch.step)
        core.log.clear()
        found: list[Failure] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._loss(batch.loss_fn, batch.value)
            window.losses = [(batch.step, loss.detach())]
            self._backward(loss)
            self._clip(window)
            failure = core.check(window, self.optimizer)
            if failure is not None:
                found.append(failure)
                raise _Abort
            return loss

        try:
            self.optimizer.step(closure)  # type: ignore[arg-type]
        except _Abort:
            core.state.snapshot.restore()
            window.small_state = small_state(core.state)
            return found[0]
        window.num_applied = 1
        return None

    # -- investigations --------------------------------------------------------------------------

    def _handle(
        self, window: Window, failure: Failure, later: list[Window] | None = None
    ) -> tuple[Incident | None, Outcome | None]:
        with self._schedule.left_alone():
            verdict = self._investigate(window, failure)
            again: Outcome | None = None
            incident = None
            if verdict.incident is not None:
                incident = self.core.conclude(verdict)
                if incident.action.kind == "rolled_back":
                    self._schedule.keep_as_it_is()
            again_too = [] if self.core.ranks.has_parted else [*verdict.redo, *(later or [])]
            for old in again_too:
                fresh = Window(old.batches, self.core.rng.capture(), old.lrs)
                if not self._schedule.is_ours:
                    self.core.state.set_lrs(old.lrs)
                self.core.state.shadow_buffers()
                again = self._run(fresh, self._attempt(fresh))
                if again.incident is None:
                    again.incident = incident
        return incident, again

    def _investigate(self, window: Window, failure: Failure) -> Verdict:
        return drive(Investigation(self.core, window, failure).run(), self._run_pass)

    def _run_pass(self, wanted: Pass) -> PassResult:
        if self.core.ranks.has_parted:
            return PassResult(is_complete=False)
        active = ActivePass(self.core, wanted)
        if not self._schedule.is_ours:
            self.core.state.set_lrs(wanted.window.lrs)
        try:
            with active:
                for batch in wanted.window.batches:
                    self._run_again(active, batch, wanted)
        except _Abort:
            pass
        except UsageError:
            raise
        except Exception:
            if self.core.ranks.is_on:
                raise
            if active.result.failure is None:
                bad = self.core.state.bad_state()
                active.result.is_complete = False
                if bad:
                    active.raised(bad, wanted.window.step)
        return active.result

    def _run_again(self, active: ActivePass, batch: BatchRef, wanted: Pass) -> None:
        value = batch.value if wanted.batch is None else wanted.batch
        step = batch.step

        def evaluate() -> Tensor:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._loss(batch.loss_fn, value)
            active.before_backward(loss, step)
            if active.is_decided and not self.core.ranks.is_on:
                raise _Abort  # with others, the backward runs on every rank or on none
            self._backward(loss)
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            active.after_backward(step)
            active.agree()
            if active.is_decided:
                raise _Abort
            if self.clip_norm is not None:
                params = [p for g in self.optimizer.param_groups for p in g["params"]]
                torch.nn.utils.clip_grad_norm_(params, self.clip_norm)
            return loss

        try:
            if self._needs_closure and wanted.is_applied:
                self.optimizer.step(evaluate)  # type: ignore[arg-type]
                return
            evaluate()
            if wanted.is_applied:
                active.on_step(self.optimizer, self.optimizer.step, step)
                self._schedule.in_pass()
                if self.scaler is not None and not active.is_decided:
                    self.scaler.update()
        finally:
            if self.scaler is not None:
                self.scaler._per_optimizer_states.clear()

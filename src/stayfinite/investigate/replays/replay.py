"""One replay in progress: what the trace observes, and what an optimizer step does."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...locate.frames import Frame, place_from_traceback
from ...locate.slice import Origin, last_origin
from ...locate.trace import SourceRef
from ...numerics.health import badness, is_finite
from ...patches.compiled import is_compiled
from ...putting_back import put_back
from ...recover.snapshot import Snapshot
from ...runtime import probes
from ...runtime.engine import Engine
from ...runtime.graph import leaves_of
from ...runtime.ranks.shards import local
from ...runtime.undo import scaler_step
from ...runtime.window import Failure, Replay, ReplayResult
from ..body.copies import clones
from .rank_trace import RankTrace
from .tracing import symptom_origin

__all__ = ["ActiveReplay", "ReplayDecided", "drive"]

T = TypeVar("T")


class ReplayDecided(BaseException):
    """Raised to end a replay whose result is known. A BaseException, so that user code does not catch it."""


def drive(replays: Generator[Replay, ReplayResult, T], run: Callable[[Replay], ReplayResult]) -> T:
    """Run all requested replays in order; returns the final result."""
    # Close the generator here if a replay fails: it must restore the state now, and not in the middle of a later
    # step, when the garbage collector finds it.
    with contextlib.closing(replays):
        result: Any = None
        while True:
            try:
                wanted = replays.send(result)
            except StopIteration as stop:
                found: T = stop.value
                return found
            result = run(wanted)


class ActiveReplay:
    """A context for the computation of all batches of a replay."""

    def __init__(self, engine: Engine, wanted: Replay) -> None:
        self.engine = engine
        self.wanted = wanted
        self.result = ReplayResult()
        self.step = wanted.window.step
        """The step of the current batch."""
        self.steps: list[int] = []
        """The steps of the backwards, if one run computes several batches."""
        self.num_backward = 0
        self.is_broken = False
        """Whether the code did not complete, so that other ranks may wait for it."""
        self._is_open = False
        self._stack = contextlib.ExitStack()
        self._small: Snapshot | None = None
        self._step: list[Callable[[], None]] = []

    def __enter__(self) -> ActiveReplay:
        state = self.engine.state
        scaled = [s for s in state.scalers if s.is_enabled()]
        self._small = Snapshot()
        self._small.take(0, [], state.small_captures(), [])
        self._step = [scaler_step(s)() for s in scaled]
        self.engine.recovery.num_replays += 1
        self._is_open = True
        try:
            self._begin(scaled)
        except BaseException:
            self.end()
            raise
        return self

    def _begin(self, scaled: list[Any]) -> None:
        for scaler in scaled:
            scaler._per_optimizer_states.clear()
            if self.wanted.is_unscaled and scaler._scale is not None:
                scaler._scale.fill_(1.0)
        for context in self.wanted.contexts:
            self._stack.enter_context(context)
        if self.wanted.trace is not None:
            probes.listen(self._read_probe)
            self._stack.enter_context(self.wanted.trace)

    def _read_probe(self, name: str, tensor: Tensor) -> None:
        trace = self.wanted.trace
        if trace is not None and not trace.is_paused:
            with _unwatched():
                self.result.probes.append(probes.read(name, tensor))

    def __exit__(self, *exc: Any) -> None:
        self.end()

    def end(self) -> None:
        """Leave all contexts and restore what a replay does not keep; can be called repeatedly."""
        if not self._is_open:
            return
        if self.wanted.wants_norm:
            self.result.grad_norm = self._norm()
        trace = self.wanted.trace
        put_back(
            self._stack.close,
            trace.modules.close if trace is not None else lambda: None,
            self._put_small_back,
            self._put_scaler_steps_back,
            lambda: probes.listen(None),
        )
        self._is_open = False
        self.engine.recovery.num_replays -= 1

    def _norm(self) -> float:
        """The norm of all gradients on this rank."""
        with torch.no_grad(), _unwatched():
            found = [local(g) for _, g in self.engine.state.grads()]
            dense = [g for g in found if g.layout == torch.strided and g.is_floating_point()]
            return math.sqrt(sum(float(g.double().square().sum()) for g in dense))

    def _put_small_back(self) -> None:
        if self._small is not None and not self.wanted.is_applied:
            self._small.restore()

    def _put_scaler_steps_back(self) -> None:
        """Restore the scaler's state of the current step if the loop is inside `scaler.step`; if the step was recomputed, with
        the new verdict.
        """
        scaled = [s for s in self.engine.state.scalers if s.is_enabled()]
        found = [
            {clones.get(k, k): dict(v) for k, v in s._per_optimizer_states.items()} for s in scaled
        ]
        for undo in self._step:
            undo()
        if not self.wanted.is_current:
            return
        for scaler, states in zip(scaled, found):
            for key, state in scaler._per_optimizer_states.items():
                new = states.get(key, {}).get("found_inf_per_device")
                if new:
                    state["found_inf_per_device"] = new

    @property
    def is_decided(self) -> bool:
        """End the replay if its result is known."""
        return self.result.failure is not None

    def on_backward(
        self,
        loss: Tensor,
        raw: Tensor,
        call: Callable[[], Any],
        keeping: Callable[[], Any] | None = None,
    ) -> Any:
        """Called for a backward of the replayed code."""
        if self.num_backward < len(self.steps):
            self.step = self.steps[self.num_backward]
        self.num_backward += 1
        self.check_loss(loss if raw is None else raw, loss)
        self._end_if_decided()
        # The loop may have computed a part of the graph before the replayed statements, and still need it.
        result = keeping() if keeping and not is_compiled(loss) else call()
        if not self.engine.state.is_scaled:
            self.check_gradients(loss)
            self._end_if_decided()
        return result

    def _end_if_decided(self) -> None:
        if self.is_decided and not self.engine.ranks.is_on:
            raise ReplayDecided  # with several ranks, the backward runs on all of them or on none

    def check_loss(self, loss: Tensor, scaled: Tensor | None = None) -> None:
        """Check whether the loss is the symptom."""
        if self.is_decided:
            return
        with _unwatched():
            bad = badness(loss)
            value = float(loss.detach()) if loss.numel() == 1 and not loss.is_complex() else None
            if self.wanted.trace is not None:
                found = loss_factor(scaled if scaled is not None else loss)
                self.result.loss_factor, self.result.loss_factor_line = found
        if value is not None:
            self.result.losses.append(value)
        if bad:
            self.result.failure = Failure("loss", self.step, value=value)
            self._trace_back([loss])

    def check_gradients(self, loss: Tensor | None = None) -> None:
        """Check the gradients.

        `loss`: used if the model is made anew in a function, so that its parameters are unknown.
        """
        if self.is_decided:
            return
        with _unwatched():
            grads = list(self.engine.state.grads())
            if not grads and loss is not None:
                grads = [(p, p.grad) for p in leaves_of([loss]) if p.grad is not None]
            bad = [(p, g) for p, g in grads if not is_finite(g)]
        if bad:
            name = self.engine.state.name_of(bad[0][0])
            self.result.failure = Failure("gradient", self.step, name=name)
            self._trace_back([g for _, g in bad])

    def check_results(self, loss: Tensor, grads: Sequence[Tensor]) -> None:
        """Check gradients that a training without a torch optimizer received as values."""
        self.num_backward += 1
        self.check_loss(loss)
        if not self.is_decided and (bad := [g for g in grads if not is_finite(g)]):
            self.result.failure = Failure("gradient", self.step)
            self._trace_back(bad)
        self._end_if_decided()

    def agree(self) -> None:
        """Agree with the other ranks on the result."""
        failure = self.engine.ranks.agree(self.result.failure)
        if self.result.failure is None:
            self.result.failure = failure

    def on_optimizer_step(self, optimizer: Optimizer, call: Callable[[], Any]) -> Any:
        """Called for an optimizer step in the replay: skip it, or run and check it."""
        if not self.begin_step():
            return None
        result = call()
        self.end_step()
        return result

    def begin_step(self) -> bool:
        """Called when the gradients are complete; returns whether to run the step."""
        self.result.num_steps += 1
        self.check_gradients()
        self.agree()
        self._end_if_decided()
        if self.is_decided or not self.wanted.is_applied:
            return False
        if self.wanted.trace is not None:
            self.wanted.trace.direction = "optimizer"
        return True

    def end_step(self) -> None:
        """Called after the step: check the state."""
        if self.wanted.trace is not None:
            self.wanted.trace.direction = "forward"
        with _unwatched():
            bad = self.engine.state.bad_state()
        if bad:
            kind, name, _ = bad[0]
            self.result.failure = Failure(kind, self.step, name=name)
            self._trace_back([t for _, _, t in bad])
            self._end_if_decided()

    def on_closure_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], call: Callable[[Any], Any]
    ) -> Any:
        """Called for a step that evaluates its closure: check each evaluation."""
        self.result.num_steps += 1
        if self.wanted.is_applied:
            return call(closure)
        with torch.enable_grad():
            return closure()

    def on_scaler_skip(self, optimizer: Optimizer) -> None:
        """Called if the scaler skips the step because its gradients are not finite."""
        self.result.num_steps += 1
        self.check_gradients()
        self._end_if_decided()

    def raised(self, bad: list[tuple[str, str, Tensor]]) -> None:
        """Note that the step raised because its initial state is corrupted."""
        kind, name, tensor = bad[0]
        self.result.failure = Failure(kind, self.step, name=name)
        self.result.origin = Origin(None, SourceRef(kind, name, tensor), ())

    def raised_on(self, symptoms: list[Tensor]) -> None:
        """Note that the step raised as in the training, on these tensors or on the last results."""
        trace = self.wanted.trace
        origin = symptom_origin(trace, symptoms) if trace is not None else None
        if origin is None and trace is not None:
            origin = last_origin(trace)
        if origin is not None or symptoms:
            self.result.failure = Failure("loss", self.step)
            self.result.origin = origin

    def _trace_back(self, symptoms: list[Tensor]) -> None:
        trace = self.wanted.trace
        if trace is not None:
            origin = symptom_origin(trace, symptoms)
            if isinstance(trace, RankTrace) and not self.engine.ranks.has_others:
                origin = trace.own(origin)
            self.result.origin = origin
            trace.is_paused = True


def loss_factor(loss: Tensor) -> tuple[float | None, Frame | None]:
    """The constant by which the loss was multiplied last before the backward, and its line."""
    factor = 1.0
    todo: list[Any] = [loss.grad_fn]
    for _ in range(_LAST_NODES):
        node = todo.pop(0) if todo else None
        if node is None:
            continue
        name = node.name().rstrip("0123456789")
        if name == "MulBackward":
            found = _constant(node)
            if found is not None:
                recorded = node.metadata.get("traceback_")
                return found * factor, place_from_traceback(recorded).user if recorded else None
        elif name == "DivBackward" and (divisor := _constant(node)):
            factor /= divisor
        elif name not in _PASS_ON:
            continue
        todo += [n for n, _ in node.next_functions]
    return None, None


def _constant(product: Any) -> float | None:
    for name in ("_saved_other", "_saved_self"):
        saved = getattr(product, name, None)
        if isinstance(saved, (int, float)):
            return float(saved)
        if isinstance(saved, Tensor) and saved.numel() == 1 and not saved.requires_grad:
            return float(saved)
    return None


_LAST_NODES = 12
_PASS_ON = {
    f"{n}Backward"
    for n in (
        "ToCopy",
        "View",
        "Squeeze",
        "Unsqueeze",
        "Mean",
        "Sum",
        "Neg",
        "Add",
        "Clone",
        "Alias",
    )
}


def _unwatched() -> Any:
    return torch.utils._python_dispatch._disable_current_modes()

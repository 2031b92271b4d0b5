"""One running pass: where the trace looks, and what an optimizer step does meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..locate.slice import Origin
from ..locate.trace import SourceRef
from ..numerics.health import badness, is_finite
from ..observe import probes
from ..recover.snapshot import Snapshot
from .core import Core
from .tracing import spoiling_step, symptom_origin
from .window import Failure, Pass, PassResult

__all__ = ["ActivePass", "drive"]

T = TypeVar("T")


def drive(passes: Generator[Pass, PassResult, T], run: Callable[[Pass], PassResult]) -> T:
    """Run whatever passes are wanted, one after the other; what it all came to."""
    try:
        wanted = next(passes)
        while True:
            wanted = passes.send(run(wanted))
    except StopIteration as stop:
        found: T = stop.value
        return found


class ActivePass:
    """Entered for as long as the batches of a pass are run."""

    def __init__(self, core: Core, wanted: Pass) -> None:
        self.core = core
        self.wanted = wanted
        self.result = PassResult()
        self._stack = contextlib.ExitStack()
        self._small: Snapshot | None = None

    def __enter__(self) -> ActivePass:
        state = self.core.state
        self._small = Snapshot()
        self._small.take(0, [], state.small_slots(), [])
        for context in self.wanted.contexts:
            self._stack.enter_context(context)
        if self.wanted.is_unscaled:
            for scaler in state.scalers:
                if scaler._scale is not None:
                    scaler._scale.fill_(1.0)
        if self.wanted.trace is not None:
            probes.listen(self._read_probe)
            self._stack.enter_context(self.wanted.trace)
        self.core.recovery.num_passes += 1
        return self

    def _read_probe(self, name: str, tensor: Tensor) -> None:
        trace = self.wanted.trace
        if trace is not None and not trace.is_paused:
            with _unwatched():
                self.result.probes.append(probes.read(name, tensor))

    def __exit__(self, *exc: Any) -> None:
        probes.listen(None)
        self.core.recovery.num_passes -= 1
        self._stack.close()
        if self._small is not None and not self.wanted.is_applied:
            self._small.restore()

    @property
    def is_decided(self) -> bool:
        """Nothing more is to be learned from this pass."""
        return self.result.failure is not None

    def before_backward(self, loss: Tensor, step: int) -> None:
        """The loss is known: is it the symptom?"""
        if self.is_decided:
            return
        with _unwatched():
            bad = badness(loss)
            value = float(loss.detach()) if loss.numel() == 1 else None
            if self.wanted.trace is not None:
                self.result.loss_factor = loss_factor(loss)
        if value is not None:
            self.result.losses.append(value)
        if bad:
            self.result.failure = Failure("loss", step, value=value)
            self._trace_back([loss])

    def own_check(self, value: Tensor, step: int) -> None:
        """The loop itself asks about a number; it counts if this pass has made it."""
        if self.wanted.step_trace is not None:
            return  # the turn before may still be asking
        trace = self.wanted.trace
        if trace is None or trace.writers.find(value):
            self.before_backward(value, step)

    def after_backward(self, step: int) -> None:
        """The gradients are known: are they?"""
        if self.is_decided:
            return
        with _unwatched():
            bad = [(p, g) for p, g in self.core.state.grads() if not is_finite(g)]
        if bad:
            name = self.core.state.name_of(bad[0][0])
            self.result.failure = Failure("gradient", step, name=name)
            self._trace_back([g for _, g in bad])

    def agree(self) -> None:
        """Between ranks a pass is decided for all of them or for none."""
        failure = self.core.ranks.agree(self.result.failure)
        if self.result.failure is None:
            self.result.failure = failure

    def on_step(self, optimizer: Optimizer, call: Callable[[], Any], step: int) -> Any:
        """An optimizer step inside the pass: left out, or run and looked at."""
        if self.is_decided or not self.wanted.is_applied:
            return None
        trace = self.wanted.trace
        if trace is not None:
            trace.direction = "optimizer"
        result = call()
        if trace is not None:
            trace.direction = "forward"
        with _unwatched():
            bad = self.core.state.bad_state()
        if bad:
            kind, name, _ = bad[0]
            self.result.failure = Failure(kind, step, name=name)
            self._trace_back([t for _, _, t in bad])
        return result

    def trace_step(self, call: Callable[[], Any]) -> None:
        """The optimizer step that spoiled the state once more, from the same gradients, watched."""
        trace = self.wanted.step_trace
        if trace is None or self.result.failure is None:
            return
        if self.result.failure.symptom in ("loss", "gradient"):
            return  # it was not the step
        self.result.origin = spoiling_step(trace, self.core.state, call)

    def raised(self, bad: list[tuple[str, str, Tensor]], step: int) -> None:
        """The step raised because the state it began with is corrupt."""
        kind, name, tensor = bad[0]
        self.result.failure = Failure(kind, step, name=name)
        self.result.origin = Origin(None, SourceRef(kind, name, tensor), ())

    def _trace_back(self, symptoms: list[Tensor]) -> None:
        trace = self.wanted.trace
        if trace is not None:
            self.result.origin = symptom_origin(trace, symptoms)
            trace.is_paused = True


def loss_factor(loss: Tensor) -> float | None:
    """The constant that the loss was multiplied with just before the backward, if there is one."""
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
                return found * factor
        elif name == "DivBackward" and (divisor := _constant(node)):
            factor /= divisor
        elif name not in _PASS_ON:
            continue
        todo += [n for n, _ in node.next_functions]
    return None


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

"""Warns of a value that climbs towards its dtype's limit.

Loss and gradient norm are judged when they were read anyway, and only after a rise; weights are judged in the deep checks,
within their budget.
"""

from __future__ import annotations

import inspect
import os
from collections import deque
from typing import Protocol

import torch
from torch import Tensor, nn

from ...detect.climb import LIMITS, climb
from ...detect.spike import SpikeWatch
from ...numerics.health import magnitudes, numbers_of
from ...records import Event
from ..outside_modes import outside_user_code
from ..state import TrainState
from ..window import Window

__all__ = ["Headroom"]

_NAMES = {"loss": "loss", "grad_norm": "gradient norm"}
_AGAIN = 1000
"""Steps before the same warning is repeated."""
_KEPT = 6


class Warns(Protocol):
    """Collects the warnings of one training."""

    @property
    def state(self) -> TrainState: ...

    def warn(self, event: Event) -> None: ...


class Headroom:
    """Warns of values that climb towards the limit of their dtype."""

    def __init__(self) -> None:
        self._warned_at: dict[str, int] = {}
        self._sizes: deque[tuple[int, list[float]]] = deque(maxlen=_KEPT)
        self._names: list[str] = []

    def check_figure(self, training: Warns, window: Window, name: str, watch: SpikeWatch) -> None:
        """Check a loss or gradient norm that is rising."""
        if not watch.is_rising() or self._is_warned(name, window.step):
            return
        dtype = _figure_dtype(training.state)
        found = climb(watch.recent(), LIMITS[dtype])
        if found is None:
            return
        self._warned_at[name] = window.step
        layer = _steepest(training.state)
        text = found.describe(_NAMES[name], dtype)
        training.warn(
            Event(
                step=window.step, epoch=window.epoch, kind="headroom", value=found.steps_left,
                phase="loss" if name == "loss" else "backward",
                symptom="loss" if name == "loss" else "gradient", name=layer or name,
                lr=training.state.lrs(), message=text + _where(training.state, layer),
            )
        )  # fmt: skip

    @outside_user_code
    @torch.no_grad()
    def check_weights(self, training: Warns, step: int) -> None:
        """Check the weights, at a deep check, which syncs anyway."""
        named = [
            (n, p)
            for n, p in training.state.parameters()
            if p.is_floating_point() and p.numel() and p.layout == torch.strided
            and p.device.type != "meta" and not hasattr(p, "to_local")
        ]  # fmt: skip
        if not named:
            return
        sizes = _largest([p.detach() for _, p in named])
        names = [n for n, _ in named]
        if names != self._names:
            self._names = names
            self._sizes.clear()
        self._sizes.append((step, sizes))
        if len(self._sizes) < 3:
            return
        steps = [s for s, _ in self._sizes]
        every = max(1, (steps[-1] - steps[0]) // (len(steps) - 1))
        for i, (name, p) in enumerate(named):
            dtype = str(p.dtype).removeprefix("torch.")
            found = climb(
                [s[i] for _, s in self._sizes], LIMITS.get(dtype, LIMITS["float32"]), every
            )
            if found is not None and not self._is_warned(name, step):
                self._warned_at[name] = step
                text = found.describe(f"largest weight of {name}", dtype)
                training.warn(
                    Event(
                        step=step, kind="headroom", phase="parameter", symptom="parameter", name=name,
                        value=found.steps_left, message=text + _where(training.state, name),
                    )
                )  # fmt: skip

    def _is_warned(self, name: str, step: int) -> bool:
        return name in self._warned_at and step - self._warned_at[name] < _AGAIN

    def forget_after(self, step: int) -> None:
        """The training was rolled back."""
        self._warned_at = {n: s for n, s in self._warned_at.items() if s < step}
        self._sizes.clear()


def _largest(tensors: list[Tensor]) -> list[float]:
    """The largest magnitude of each, in one transfer for each device."""
    device = tensors[0].device
    return numbers_of([n.to(device, torch.float32) for n in magnitudes(tensors)])


def _figure_dtype(state: TrainState) -> str:
    """The dtype of the gradients."""
    is_half = any(p.dtype == torch.float16 for _, p in state.parameters())
    return "float16" if is_half else "float32"


@torch.no_grad()
def _steepest(state: TrainState) -> str | None:
    """The parameter with the largest gradient."""
    pairs = [
        (p, g) for p, g in state.grads() if g.layout == torch.strided and not hasattr(g, "to_local")
    ]
    if not pairs:
        return None
    sizes = _largest([g.detach() for _, g in pairs])
    best = max(range(len(sizes)), key=lambda i: sizes[i] if sizes[i] == sizes[i] else -1.0)
    return state.name_of(pairs[best][0])


def _where(state: TrainState, parameter: str | None) -> str:
    """The end of a warning: the layer with the largest gradient, and the advice."""
    if parameter is None:
        return ""
    path = parameter.rpartition(".")[0]
    line = _line_of(state, path)
    at = f" ({line})" if line else ""
    return f"; the largest gradient is in {path or parameter}{at}. Lower the learning rate, or clip the gradients"


def _line_of(state: TrainState, path: str) -> str:
    """The line of `forward` of the innermost user-defined module around this layer."""
    for prefix, root in state.roots.items():
        inner = path.removeprefix(prefix).removeprefix(".") if prefix else path
        while True:
            line = _forward_line(root, inner)
            if line or not inner:
                break
            inner = inner.rpartition(".")[0]
        if line:
            return line
    return ""


def _forward_line(root: nn.Module, inner: str) -> str:
    try:
        module = root.get_submodule(inner)
    except AttributeError:
        return ""
    if type(module).__module__.partition(".")[0] == "torch":
        return ""
    code = getattr(type(module).forward, "__code__", None)
    file = inspect.getsourcefile(code) if code is not None else None
    return f"{os.path.basename(file)}:{code.co_firstlineno}" if file and code is not None else ""

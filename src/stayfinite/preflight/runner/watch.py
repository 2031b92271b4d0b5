"""Records the inputs and outputs of every layer in one step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ...runtime.batches import named_tensors
from ..probes import LayerSeen

__all__ = ["LayerWatch"]

_SAMPLE = 256
_SUBSET = 1 << 18
"""Elements that shares and moments are measured on; extremes are of all."""
_TINY_FP16 = 2.0**-25
"""Half of the smallest subnormal: below it float16 rounds to zero."""
_GROWING = {
    "mm", "bmm", "addmm", "baddbmm", "convolution", "exp", "pow", "square", "sum", "cumsum",
    "linalg_vector_norm", "prod", "_native_batch_norm_legit", "logsumexp",
}  # fmt: skip
"""Operators whose result outgrows its operands; a mask of -1e9 is nobody's peak."""


class LayerWatch(TorchDispatchMode):
    """Measures the outputs and gradients of the named modules while it is entered."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self._handles: list[Any] = []
        self._running: list[LayerSeen] = []
        self._layers: dict[str, LayerSeen] = {}
        self.scale = 1.0
        """What gradients are divided by: the loss scale."""

    def __enter__(self) -> Any:
        # For all modules of the process, so that nothing hangs on the model: it can still be pickled.
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()

    def layers(self) -> list[LayerSeen]:
        """In the order in which they finished."""
        return sorted((s for s in self._layers.values() if s.num_calls), key=lambda s: s.depth)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._running and torch._C._current_autograd_node() is None:
            name = func._schema.name.partition("::")[2]
            if name in _GROWING:
                first = out[0] if isinstance(out, tuple) else out
                if isinstance(first, Tensor) and _is_measurable(first):
                    self._note_peak(self._running[-1], name, first)
        return out

    @staticmethod
    def _note_peak(layer: LayerSeen, name: str, value: Tensor) -> None:
        size = _abs_max(value)
        if math.isfinite(size) and size > layer.peak:
            layer.peak, layer.peak_op = size, f"aten.{name}"

    def _of(self, module: nn.Module) -> LayerSeen:
        path = self._names[id(module)]
        known = self._layers.get(path)
        if known is None:
            known = self._layers[path] = LayerSeen(path, type(module).__name__)
        return known

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if id(module) in self._names:
            self._running.append(self._of(module))

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in self._names:
            return
        layer = self._of(module)
        if self._running and self._running[-1] is layer:
            self._running.pop()
        tensors = [t for _, t in named_tensors(output, "") if _is_measurable(t)]
        if not tensors or not torch.is_grad_enabled():
            return
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            if layer.num_calls == 0:
                layer.depth = sum(s.num_calls > 0 for s in self._layers.values())
            layer.num_calls += 1
            for i, t in enumerate(tensors):
                measure_output(layer, t, is_first=i == 0)
        for t in tensors:
            if t.requires_grad and not t.is_leaf:
                t.register_hook(lambda g, layer=layer: self._on_gradient(layer, g))

    def _on_gradient(self, layer: LayerSeen, gradient: Tensor) -> None:
        if not _is_measurable(gradient):
            return
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            g = gradient.detach().float() / self.scale
            layer.grad_abs_max = max(layer.grad_abs_max or 0.0, _abs_max(g))
            norm = float(torch.linalg.vector_norm(g))
            layer.grad_norm = math.hypot(layer.grad_norm or 0.0, norm)
            layer.grad_underflow_fp16 = _underflow(_subset(g))


def _is_measurable(t: Tensor) -> bool:
    return (
        t.is_floating_point()
        and t.layout == torch.strided
        and t.numel() > 0
        and t.device.type != "meta"
    )


def _abs_max(t: Tensor) -> float:
    low, high = torch.aminmax(t.detach())
    return max(abs(float(low)), abs(float(high))) if low == low else math.nan


def measure_output(layer: LayerSeen, output: Tensor, is_first: bool) -> None:
    """Adds one output tensor to what is known of its layer."""
    t = output.detach()
    finite, largest = t, _abs_max(t)
    if not math.isfinite(largest):
        finite = t[torch.isfinite(t)]
        largest = _abs_max(finite) if finite.numel() else 0.0
    layer.num_bad += t.numel() - finite.numel()
    layer.num_elements += t.numel()
    layer.abs_max = max(layer.abs_max, largest)
    if not is_first:
        return
    layer.dtype, layer.shape = str(t.dtype).removeprefix("torch."), tuple(t.shape)
    part = _subset(finite).float()
    if part.numel():
        layer.mean = float(part.mean())
        layer.std = float(part.std(correction=0))
        layer.underflow_fp16 = _underflow(part)
    layer.dead_units, layer.num_units = _dead_units(t)
    layer.sample = _subset(t, _SAMPLE).float().cpu().clone()


def _subset(t: Tensor, size: int = _SUBSET) -> Tensor:
    """Evenly spread elements, the same places for the same shape."""
    flat = t.detach().reshape(-1)
    return flat if flat.numel() <= size else flat[:: flat.numel() // size][:size]


def _underflow(t: Tensor) -> float:
    size = t.abs()
    num_zero = int((size == 0).sum())
    num_tiny = int((size < _TINY_FP16).sum()) - num_zero
    return num_tiny / (t.numel() - num_zero) if num_zero < t.numel() else 0.0


def _dead_units(t: Tensor) -> tuple[int, int]:
    """Units that are zero for every sample: channels of images, else the last dimension."""
    if t.dim() < 2:
        return 0, 0
    unit = 1 if t.dim() == 4 else t.dim() - 1
    others = [d for d in range(t.dim()) if d != unit]
    return int((t == 0).all(dim=others[0]).sum()) if len(others) == 1 else int(
        (t.abs().amax(dim=others) == 0).sum()
    ), t.shape[unit]

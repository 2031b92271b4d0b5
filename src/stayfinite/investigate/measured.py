"""What is measured while a change is run: gradients, weights, and how near values come to a dtype's limit."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..runtime.state import TrainState

__all__ = ["Distance", "GradientNorm", "size_of"]

_NEAR = 4.0
"""A value of more than a quarter of the dtype's limit is near it."""
_HALF = ("float16", "bfloat16")


class GradientNorm:
    """Reads the norm of the gradients at the end of a replay."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self.value: float | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            found = [
                g for _, g in self._state.grads()
                if g.layout == torch.strided and g.is_floating_point()
            ]  # fmt: skip
            self.value = math.sqrt(sum(float(g.double().square().sum()) for g in found))


class Distance(TorchDispatchMode):
    """How near the largest half-precision values of a pass come to the limit of their dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = getattr(torch, dtype, None)
        self.is_of_use = dtype in _HALF
        self.largest = 0.0

    @property
    def is_near(self) -> bool:
        return self._dtype is not None and self.largest * _NEAR > torch.finfo(self._dtype).max

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == self._dtype and out.numel():
            largest = float(out.detach().abs().amax())
            limit = torch.finfo(out.dtype).max
            if (
                math.isfinite(largest) and largest != limit
            ):  # a mask is written with the limit itself
                self.largest = max(self.largest, largest)
        return out


@torch.no_grad()
def size_of(state: TrainState) -> float:
    """The norm of all weights."""
    weights = [p.detach().float() for _, p in state.parameters() if p.is_floating_point()]
    return math.sqrt(sum(float(w.square().sum()) for w in weights if w.layout == torch.strided))

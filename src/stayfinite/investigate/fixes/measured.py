"""Measures a run with a change: the norm of the weights, and the distance of values to their dtype's limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...runtime.ranks.shards import local
from ...runtime.state import TrainState

__all__ = ["Distance", "mean_of", "relative_change", "size_of", "tolerance"]

_NEAR = 4.0
"""A value above a quarter of the dtype's limit is close to it."""
_HALF = ("float16", "bfloat16")
_ROUNDING = {"float16": 2e-2, "bfloat16": 5e-2}


class Distance(TorchDispatchMode):
    """How close the largest half-precision values come to the limit of their dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = getattr(torch, dtype, None)
        self.is_of_use = dtype in _HALF
        self.largest = 0.0

    def __reduce__(self) -> Any:
        return Distance, (str(self._dtype).rpartition(".")[2],)

    @property
    def is_near(self) -> bool:
        return self._dtype is not None and self.largest * _NEAR > torch.finfo(self._dtype).max

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        is_half = isinstance(out, torch.Tensor) and out.dtype == self._dtype
        if is_half and (part := local(out.detach())).numel():
            largest = float(part.abs().amax())
            limit = torch.finfo(out.dtype).max
            if (
                math.isfinite(largest) and largest != limit
            ):  # a mask is written with the limit itself
                self.largest = max(self.largest, largest)
        return out


@torch.no_grad()
def size_of(state: TrainState) -> float:
    """The norm of all weights."""
    parameters = [local(p.detach()) for _, p in state.parameters()]
    weights = [p.float() for p in parameters if p.is_floating_point()]
    return math.sqrt(sum(float(w.square().sum()) for w in weights if w.layout == torch.strided))


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def relative_change(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference between two rows of losses; infinite if they cannot be compared."""
    if len(one) != len(other):
        return math.inf
    worst = 0.0
    for a, b in zip(one, other):
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        worst = max(worst, abs(a - b) / max(abs(a), abs(b), 1e-3))
    return worst


def tolerance(dtype: str) -> float:
    """The relative difference of a loss that rounding can explain."""
    return _ROUNDING.get(dtype, 2e-5)

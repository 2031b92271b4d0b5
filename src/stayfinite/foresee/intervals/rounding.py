"""Limits and rounding of each dtype, and the error of a long sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["eps_of", "is_finite", "is_float", "limit_of", "rounded", "tiny_of", "widened"]


def is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def limit_of(dtype: torch.dtype) -> float:
    """The largest finite number."""
    return float(torch.finfo(dtype).max)


def tiny_of(dtype: torch.dtype) -> float:
    """The smallest number above zero that is sure not to be flushed to zero."""
    return float(torch.finfo(dtype).tiny)


def eps_of(dtype: torch.dtype) -> float:
    """Rounding of the arithmetic that sums are made in: half precision adds up in float32."""
    return float(torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded as a result is when it is stored. Rounding keeps order, so the rounded ends of a range
    hold every rounded value of it."""
    if dtype is torch.float64 or not is_float(dtype):
        return x
    return x.to(dtype).to(torch.float64)


def widened(lo: Tensor, hi: Tensor, dtype: torch.dtype, ulps: float) -> tuple[Tensor, Tensor]:
    """Outwards by this many units in the last place: a kernel need not round correctly."""
    eps = ulps * float(torch.finfo(dtype).eps if is_float(dtype) else 0.0)
    # A range of one point at zero stays there: functions are exact where they are zero.
    return lo - lo.abs() * eps, hi + hi.abs() * eps


def is_finite(lo: Tensor, hi: Tensor) -> bool:
    """Nothing in the range is infinite or not known."""
    return not lo.numel() or (math.isfinite(float(lo.min())) and math.isfinite(float(hi.max())))

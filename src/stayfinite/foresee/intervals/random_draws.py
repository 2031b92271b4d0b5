"""Models of random operators: the range of what they can draw."""

from __future__ import annotations

from typing import Any

import torch

from ..tape import refs_in
from .arithmetic import hull
from .call import At, NotModeled, model
from .rounding import limit_of
from .shadow import Span

__all__: list[str] = []

_NORMAL = 8.7
"""No draw of a normal number is further out: the uniform number below it has at most 53 bits."""


@model("rand", "rand_like", "uniform", "randn", "randn_like", "normal", "bernoulli", "exponential", "randint",
       "randint_like", "random", "multinomial", "randperm", "log_normal", "native_dropout", "cauchy",
       "geometric",
    "_sample_dirichlet", "empty_permuted")  # fmt: skip
def draw(at: At, *args: Any, **named: Any) -> Any:
    """What is drawn at random: all that can be drawn."""
    refs = list(refs_in(at.call.results)) or list(refs_in(at.call.args))
    shape = refs[0].shape

    def between(low: float, high: float) -> Span:
        return Span(
            torch.full(shape, low, dtype=torch.float64),
            torch.full(shape, high, dtype=torch.float64),
            at.dtype,
        )

    at.words = "the random number"
    numbers = [float(a) for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    if at.name in ("rand", "rand_like", "uniform"):
        low, high = (
            (float(v) for v in (*numbers, *named.values())[:2])
            if at.name == "uniform" and len(numbers) + len(named) >= 2
            else (0.0, 1.0)
        )
        top = (
            high - (high - low) * float(torch.finfo(at.dtype).eps) / 2
            if at.name != "uniform"
            else high
        )
        return between(low, top)
    if at.name in ("randn", "randn_like"):
        return between(-_NORMAL, _NORMAL)
    if at.name == "normal":
        spans = [a for a in args[: 1 + (len(args) > 1)] if isinstance(a, Span)]
        if at.call.is_written and len(numbers) == 2:
            return between(numbers[0] - _NORMAL * numbers[1], numbers[0] + _NORMAL * numbers[1])
        if at.call.is_written and not numbers:
            return between(-_NORMAL, _NORMAL)
        raise NotModeled(f"normal with {len(spans)} tensors")
    if at.name in ("bernoulli", "_sample_dirichlet"):
        return between(0.0, 1.0)
    if at.name == "exponential":
        rate = numbers[0] if numbers else 1.0
        return between(float(torch.finfo(torch.float32).eps) / 4 / rate, 104.0 / rate)
    if at.name == "native_dropout":
        x, p = args[0], float(args[1])
        scale = 1 / (1 - p) if p < 1 else 0.0
        both = Span(x.lo * scale, x.hi * scale, at.dtype)
        zero = Span(torch.zeros_like(x.lo), torch.zeros_like(x.lo), at.dtype)
        keep = Span(torch.zeros_like(x.lo), torch.ones_like(x.lo), torch.bool)
        return hull(both, zero), keep
    if at.dtype.is_floating_point and at.name != "randint":
        raise NotModeled("the random numbers are not bounded")
    top = limit_of(torch.float32) if not refs[0].length else _int_top(at, numbers, args)
    return between(0.0, top)


def _int_top(at: At, numbers: list[float], args: Any) -> float:
    if at.name == "multinomial":
        return float(args[0].shape[-1] - 1)
    if at.name in ("randint", "random", "randint_like") and numbers:
        return max(numbers) - 1
    if at.name == "randperm":
        return float(numbers[0] - 1) if numbers else 0.0
    raise NotModeled("whole random numbers")

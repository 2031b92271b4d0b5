"""Models of arithmetic with two operands, of comparisons and of selections."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .call import At, Failure, NotModeled, model, scalar_span
from .rounding import is_finite, tiny_of
from .shadow import Span

__all__ = [
    "as_span",
    "both_spans",
    "difference",
    "extreme",
    "hull",
    "product",
    "quotient",
    "reduces",
    "same",
    "scaled",
    "square",
]


def as_span(value: Any, like: Span) -> Span:
    return value if isinstance(value, Span) else scalar_span(value, like)


def both_spans(x: Any, y: Any) -> tuple[Span, Span]:
    like = x if isinstance(x, Span) else y
    return as_span(x, like), as_span(y, like)


def same(x: Span, y: Span) -> bool:
    """The very same values, element by element."""
    return x.key is not None and x.key == y.key


def hull(x: Span, y: Span) -> Span:
    return Span(torch.minimum(x.lo, y.lo), torch.maximum(x.hi, y.hi), x.dtype)


def scaled(y: Span, alpha: Any) -> Span:
    if alpha == 1:
        return y
    a = float(alpha)
    lo, hi = (y.lo * a, y.hi * a) if a >= 0 else (y.hi * a, y.lo * a)
    return Span(lo, hi, y.dtype, has_inf=y.has_inf)


@model("add", inf=True)
def add(at: At, x: Any, y: Any, alpha: Any = 1) -> Span:
    x, y = both_spans(x, y)
    z = scaled(y, alpha)
    _check_opposite(at, x, z)
    made = Span(x.lo + z.lo, x.hi + z.hi, at.dtype)
    for a, b in ((x, z), (z, x)):
        if a.facts and bool((b.lo >= 0).all()):  # only made larger: still at least the norm
            for fact in ("norm_of", "sum_of", "sumsq_of"):
                if fact in a.facts:
                    made.facts[fact] = a.facts[fact]
    at.words = _sum_words(x, y)
    return _no_nan(made)


def _sum_words(x: Span, y: Span) -> str:
    for a, b in ((x, y), (y, x)):
        if a.words and b.lo.numel() == 1 and b.is_point:
            return f"{a.words} + {float(b.lo):g}"
    return ""


def _check_opposite(at: At, x: Span, y: Span) -> None:
    """inf + (-inf) is NaN."""
    if not x.has_inf or not y.has_inf:
        return
    bad = ((x.lo == -math.inf) & (y.hi == math.inf)) | ((x.hi == math.inf) & (y.lo == -math.inf))
    at.fail("domain_error", bad, "inf and -inf are added")


def _no_nan(s: Span) -> Span:
    """After inf - inf, which is reported already, anything is possible."""
    if is_finite(s.lo, s.hi):
        return s
    s.lo = torch.where(s.lo.isnan(), torch.full_like(s.lo, -math.inf), s.lo)
    s.hi = torch.where(s.hi.isnan(), torch.full_like(s.hi, math.inf), s.hi)
    return s


@model("sub", inf=True)
def sub(at: At, x: Any, y: Any, alpha: Any = 1) -> Span:
    x, y = both_spans(x, y)
    return difference(at, x, y, alpha)


@model("rsub", inf=True)
def rsub(at: At, x: Any, y: Any, alpha: Any = 1) -> Span:
    x, y = both_spans(x, y)
    return difference(at, y, x, alpha)


def difference(at: At, x: Span, y: Span, alpha: Any = 1) -> Span:
    if same(x, y) and alpha == 1 and bool(x.mag.isfinite().all()):
        return x.like(torch.zeros_like(x.lo), torch.zeros_like(x.lo))
    z = scaled(y, alpha)
    _check_opposite(at, x, Span(-z.hi, -z.lo, z.dtype, has_inf=z.has_inf))
    made = _no_nan(Span(x.lo - z.hi, x.hi - z.lo, at.dtype))
    if alpha == 1 and reduces(y.facts.get("amax") or y.facts.get("lse"), x, y):
        made.hi = made.hi.clamp(max=0.0)
        if "amax" in y.facts:
            made.facts["zero_max"] = y.facts["amax"][2]
        else:  # the logarithm of a sum is rounded: it may be a little below the largest term
            made.hi = made.hi + 1e-5 * (1 + x.mag)
    if alpha == 1 and reduces(x.facts.get("amax"), y, x):
        made.lo = made.lo.clamp(min=0.0)
    if x.words and y.words:
        at.words = f"{x.words} - {y.words}"
    return made


def reduces(fact: Any, x: Span, m: Span) -> bool:
    """Whether m is a reduction of x, laid beside it along the very dimensions that it reduced."""
    if fact is None or x.key is None:
        return False
    key, shape, dims = fact[:3]
    if key != x.key or tuple(shape) != tuple(x.shape):
        return False
    padded = (1,) * (len(shape) - len(m.shape)) + tuple(m.shape)
    if len(padded) != len(shape):
        return False
    return all(
        (p == 1 and (d in dims or s == 1)) or (p == s and d not in dims)
        for d, (p, s) in enumerate(zip(padded, shape))
    )


@model("mul", inf=True)
def mul(at: At, x: Any, y: Any) -> Span:
    x, y = both_spans(x, y)
    return product(at, x, y)


def product(at: At, x: Span, y: Span) -> Span:
    if same(x, y):
        return square(at, x)
    made = _product_range(at, x, y)
    for a, b in ((x, y), (y, x)):
        if reduces(b.facts.get("inv_norm_of"), a, b):
            bound = b.facts["inv_norm_of"][3] * 1.0001
            made = Span(made.lo.clamp(min=-bound), made.hi.clamp(max=bound), at.dtype)
        if b.lo.numel() == 1 and b.is_point and float(b.lo) != 0:
            at.words = f"{float(b.lo):g} times {a.words}" if a.words else ""
            made.facts["zero_iff"] = a.facts.get("zero_iff", a.key)
    return made


def _product_range(at: At, x: Span, y: Span) -> Span:
    for a, b in ((x, y), (y, x)):
        if b.lo.numel() == 1 and bool(b.lo.isfinite()) and bool(b.lo == b.hi) and not a.has_inf:
            low, high = (a.lo, a.hi) if float(b.lo) >= 0 else (a.hi, a.lo)
            return Span(low * b.lo, high * b.lo, at.dtype)
    if x.has_inf or y.has_inf:
        _check_zero_times_inf(at, torch.broadcast_tensors(x.lo, x.hi, y.lo, y.hi))
    ends = [p * q for p in (x.lo, x.hi) for q in (y.lo, y.hi)]
    if x.has_inf or y.has_inf:
        ends = [torch.where(e.isnan(), torch.zeros_like(e), e) for e in ends]
    return Span(_least(ends), _most(ends), at.dtype)


def _least(ends: list[Tensor]) -> Tensor:
    return torch.minimum(torch.minimum(ends[0], ends[1]), torch.minimum(ends[2], ends[3]))


def _most(ends: list[Tensor]) -> Tensor:
    return torch.maximum(torch.maximum(ends[0], ends[1]), torch.maximum(ends[2], ends[3]))


def _check_zero_times_inf(at: At, ends: tuple[Tensor, ...]) -> None:
    x_lo, x_hi, y_lo, y_hi = ends
    for lo, hi, other_lo, other_hi in ((x_lo, x_hi, y_lo, y_hi), (y_lo, y_hi, x_lo, x_hi)):
        is_inf = (lo == -math.inf) | (hi == math.inf)
        at.fail("masked_branch_leak", is_inf & (other_lo <= 0) & (other_hi >= 0), "0 times inf")


def square(at: At, x: Span) -> Span:
    holds_zero = (x.lo <= 0) & (x.hi >= 0)
    small = torch.minimum(x.lo.abs(), x.hi.abs())
    made = x.like(torch.where(holds_zero, torch.zeros_like(small), small * small), x.mag * x.mag)
    if x.key is not None:
        made.facts["square_of"] = (x.key, tuple(x.shape))
    at.words = f"the square of {x.words}" if x.words else ""
    return made


@model("square")
def square_model(at: At, x: Span) -> Span:
    return square(at, x)


@model("div", "true_divide", "divide")
def div(at: At, a: Any, b: Any, rounding_mode: Any = None) -> Span:
    made = quotient(at, *both_spans(a, b))
    if rounding_mode is not None:
        f = torch.floor if rounding_mode == "floor" else torch.trunc
        made = Span(f(made.lo), f(made.hi), at.dtype)
    return made


@model("floor_divide")
def floor_divide(at: At, a: Any, b: Any) -> Span:
    made = quotient(at, *both_spans(a, b))
    return Span(torch.floor(made.lo), torch.floor(made.hi), at.dtype)


def quotient(at: At, x: Span, y: Span) -> Span:
    made = _quotient_range(at, x, y)
    if reduces(y.facts.get("norm_of"), x, y):
        # Squares that underflow make a norm too small by a factor, never more, or zero.
        bound = torch.tensor(y.facts["norm_of"][3] * 2.0, dtype=torch.float64)
        low = torch.where(made.lo.isnan(), -bound, torch.maximum(made.lo, -bound))
        high = torch.where(made.hi.isnan(), bound, torch.minimum(made.hi, bound))
        made = Span(low, high, at.dtype)
        at.failures = [replace(f, is_bounded=True) for f in at.failures if f.kind != "overflow"]
    if reduces(y.facts.get("sum_of"), x, y) and bool((x.lo >= 0).all()):
        made = Span(made.lo.clamp(min=0.0), made.hi.clamp(max=1.0 + 1e-3), at.dtype)
    return made


def _quotient_range(at: At, x: Span, y: Span) -> Span:
    smallest = tiny_of(y.dtype) if y.dtype.is_floating_point else 0.5
    if y.lo.numel() and float(y.lo.min()) >= smallest and not x.has_inf and not y.has_inf:
        low = torch.where(x.lo >= 0, x.lo / y.hi, x.lo / y.lo)
        return Span(low, torch.where(x.hi >= 0, x.hi / y.lo, x.hi / y.hi), at.dtype)
    holds_zero = (y.lo <= 0) & (y.hi >= 0)
    at.fail("zero_denominator", holds_zero, f"{y.words or 'the denominator'} is 0", y)
    near = _is_flushed(y.lo, y.dtype) | _is_flushed(y.hi, y.dtype)
    if bool((near & ~holds_zero).any()):
        said = "the denominator is next to 0"
        at.failures.append(Failure("overflow", said, is_loose=True))
    ends = [p / q for p in (x.lo, x.hi) for q in (y.lo, y.hi)]
    nan = torch.full((), math.nan, dtype=torch.float64)
    bad = (holds_zero | near).expand(ends[0].shape)
    return Span(torch.where(bad, nan, _least(ends)), torch.where(bad, nan, _most(ends)), at.dtype)


def _is_flushed(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Kernels may take what is below the normal numbers for zero."""
    if dtype not in (torch.float32, torch.bfloat16):
        return torch.zeros_like(t, dtype=torch.bool)
    return (t != 0) & (t.abs() < tiny_of(dtype))


@model("pow", inf=False)
def power(at: At, x: Any, y: Any) -> Span:
    if isinstance(x, Span) and not isinstance(y, Span):
        return power_scalar(at, x, float(y))
    if isinstance(x, Span) and y.lo.numel() == 1 and y.is_point:
        return power_scalar(at, x, float(y.lo))
    x, y = both_spans(x, y)
    name = x.words or "the base"
    at.fail("domain_error", x.lo < 0, f"{name} is negative", x)
    at.fail("zero_denominator", (x.lo <= 0) & (y.lo < 0), f"{name} is 0 under a negative power", x)
    low = x.lo.clamp(min=1e-300)
    logs = product(
        At(at.call, at.dtype), Span(low.log(), x.hi.clamp(min=1e-300).log(), at.dtype), y
    )
    made = Span(torch.exp(logs.lo) * (1 - 1e-5), torch.exp(logs.hi) * (1 + 1e-5), at.dtype)
    made.lo = torch.where(x.lo <= 0, torch.zeros_like(made.lo), made.lo)
    made.hi = torch.where(x.lo <= 0, made.hi.clamp(min=1.0), made.hi)
    return made


def power_scalar(at: At, x: Span, n: float) -> Span:
    if n == 2:
        return square(at, x)
    if n == 0:
        return x.like(torch.ones_like(x.lo), torch.ones_like(x.lo))
    is_whole = n == int(n)
    holds_zero = (x.lo <= 0) & (x.hi >= 0)
    name = x.words or "the base"
    if not is_whole:
        at.fail("domain_error", x.lo < 0, f"{name} is negative", x)
    if n < 0:
        kind = "singular_gradient" if at.call.operation.phase == "backward" else "zero_denominator"
        at.fail(kind, holds_zero, f"{name} is 0 under the power {n:g}", x)
    lo, hi = x.lo, x.hi
    if not is_whole:
        lo, hi = lo.clamp(min=0), hi.clamp(min=0)
    ends = torch.stack([lo.pow(n), hi.pow(n)])
    low, high = ends.amin(0), ends.amax(0)
    if is_whole and int(n) % 2 == 0 and n > 0:
        low = torch.where(holds_zero, torch.zeros_like(low), low)
    low, high = low - low.abs() * 1e-5, high + high.abs() * 1e-5
    nan = torch.full_like(low, math.nan)
    bad = holds_zero if n < 0 else torch.zeros_like(holds_zero)
    return x.like(torch.where(bad, nan, low), torch.where(bad, nan, high))


@model("maximum", "max", "minimum", "min", "fmax", "fmin", inf=True)
def extreme(at: At, x: Span, y: Any = None, keepdim: bool = False, dim: Any = None) -> Any:
    if y is None and dim is None:
        raise NotModeled("whole")
    if not isinstance(y, Span):
        raise NotModeled("along a dimension")
    pick = torch.maximum if "max" in at.name else torch.minimum
    made = Span(pick(x.lo, y.lo), pick(x.hi, y.hi), at.dtype)
    if "max" in at.name:
        for fact in ("norm_of", "sum_of", "sumsq_of"):
            for a in (x, y):
                if fact in a.facts:
                    made.facts[fact] = a.facts[fact]
    return made


@model("addcmul")
def addcmul(at: At, x: Span, a: Span, b: Span, value: Any = 1) -> Span:
    return add(at, x, scaled(product(at, a, b), value))


@model("addcdiv")
def addcdiv(at: At, x: Span, a: Span, b: Span, value: Any = 1) -> Span:
    return add(at, x, scaled(quotient(at, a, b), value))


@model("lerp")
def lerp(at: At, x: Span, end: Span, weight: Any) -> Span:
    w = as_span(weight, x)
    if bool((w.lo >= 0).all()) and bool((w.hi <= 1).all()):
        made = hull(x, end)
        slack = 1e-6 * made.mag
        low = torch.where(made.lo >= 0, (made.lo - slack).clamp(min=0.0), made.lo - slack)
        return Span(low, made.hi + slack, at.dtype)
    gap = product(at, difference(at, end, x), w)
    return Span(x.lo + gap.lo, x.hi + gap.hi, at.dtype)


@model("atan2", "hypot", "logaddexp", "xlogy", "fmod", "remainder")
def others(at: At, x: Any, y: Any) -> Span:
    x, y = both_spans(x, y)
    if at.name == "atan2":
        shape = torch.broadcast_shapes(x.shape, y.shape)
        return Span(torch.full(shape, -3.1416), torch.full(shape, 3.1416), at.dtype)
    if at.name == "hypot":
        a, b = square(at, x), square(at, y)
        return Span((a.lo + b.lo).sqrt() * (1 - 1e-6), (a.hi + b.hi).sqrt() * (1 + 1e-6), at.dtype)
    if at.name == "logaddexp":
        lo, hi = torch.logaddexp(x.lo, y.lo), torch.logaddexp(x.hi, y.hi)
        return Span(lo - lo.abs() * 1e-5 - 1e-6, hi + hi.abs() * 1e-5 + 1e-6, at.dtype)
    if at.name == "xlogy" and same(x, y) and bool((x.lo >= 0).all()):
        top = torch.xlogy(y.hi, y.hi).clamp(min=0.0)
        return Span(torch.full_like(top, -0.368), top * (1 + 1e-5), at.dtype)
    if at.name == "xlogy":
        at.fail(
            "log_of_zero", (y.lo <= 0) & (x.mag > 0), f"{y.words or 'the argument'} reaches 0", y
        )
        logs = Span(y.lo.clamp(min=1e-45).log(), y.hi.clamp(min=1e-45).log(), at.dtype)
        return product(at, x, logs)
    at.fail("zero_denominator", (y.lo <= 0) & (y.hi >= 0), "the divisor is 0", y)
    top = y.mag
    return Span(torch.where(x.lo >= 0, torch.zeros_like(top), -top), top, at.dtype)

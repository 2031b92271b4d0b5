"""Models of functions of one number: monotone ones, and those with a known minimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .call import At, Failure, NotModeled, is_loose, model
from .rounding import eps_of, tiny_of, widened
from .shadow import Span

__all__ = ["monotone"]

_ULPS = 8.0


def monotone(
    at: At, x: Span, f: Callable[[Tensor], Tensor], low: float = -math.inf, high: float = math.inf
) -> Span:
    """A function that never falls, with values between `low` and `high`."""
    lo, hi = widened(f(x.lo), f(x.hi), at.dtype, _ULPS)
    return x.like(lo.clamp(low, high), hi.clamp(low, high))


def flushed(at: At, made: Span) -> Span:
    """A kernel may give 0 for what is below the normal numbers of its arithmetic (half computes in float32)."""
    wide = torch.float64 if at.dtype is torch.float64 else torch.float32
    edge = 2 * tiny_of(wide)
    zero = torch.zeros_like(made.lo)
    made.lo = torch.where((made.lo > 0) & (made.lo < edge), zero, made.lo)
    made.hi = torch.where((made.hi < 0) & (made.hi > -edge), zero, made.hi)
    return made


def _register(name: str, f: Any, low: float = -math.inf, high: float = math.inf) -> None:
    @model(name, inf=not math.isinf(low) and not math.isinf(high))
    def rising(at: At, x: Span, *_: Any, **__: Any) -> Span:
        return flushed(at, monotone(at, x, f, low, high))


for _name, _f, _low, _high in (
    ("tanh", torch.tanh, -1.0, 1.0),
    ("sigmoid", torch.sigmoid, 0.0, 1.0),
    ("atan", torch.atan, -math.pi / 2, math.pi / 2),
    ("arctan", torch.atan, -math.pi / 2, math.pi / 2),
    ("asinh", torch.asinh, -math.inf, math.inf),
    ("hardsigmoid", torch.nn.functional.hardsigmoid, 0.0, 1.0),
):
    _register(_name, _f, _low, _high)


def loosened(made: Span, size: float) -> Span:
    """A kernel that is near in absolute terms only: next to a zero of its function it may give 0."""
    return made.like(made.lo - size, made.hi + size)


@model("erf", inf=True)
def erf(at: At, x: Span) -> Span:
    """Half precision takes a polynomial whose error is that of numbers around 1; signs are kept."""
    made = loosened(monotone(at, x, torch.erf), 4 * eps_of(at.dtype))
    lo = torch.where(x.lo >= 0, made.lo.clamp(min=0.0), made.lo)
    hi = torch.where(x.hi <= 0, made.hi.clamp(max=0.0), made.hi)
    return x.like(lo.clamp(-1.0, 1.0), hi.clamp(-1.0, 1.0))


@model("special_ndtr", inf=True)
def ndtr(at: At, x: Span) -> Span:
    """The kernel adds 1 to an error function: what is left far below 0 is the rounding of 1."""
    made = loosened(monotone(at, x, torch.special.ndtr), _own_eps(at))
    return x.like(made.lo.clamp(0.0, 1.0), made.hi.clamp(0.0, 1.0))


def _own_eps(at: At) -> float:
    return float(torch.finfo(at.dtype).eps)


@model("neg", inf=True)
def neg(at: At, x: Span) -> Span:
    return x.like(-x.hi, -x.lo)


@model("relu", "relu6", inf=True)
def relu(at: At, x: Span) -> Span:
    top = 6.0 if at.name == "relu6" else math.inf
    return x.like(x.lo.clamp(0.0, top), x.hi.clamp(0.0, top))


@model("abs", inf=True)
def absolute(at: At, x: Span) -> Span:
    holds_zero = (x.lo <= 0) & (x.hi >= 0)
    lo = torch.minimum(x.lo.abs(), x.hi.abs())
    made = x.like(torch.where(holds_zero, torch.zeros_like(lo), lo), x.mag)
    at.words = f"the size of {x.words}" if x.words else ""
    if x.key is not None:
        made.facts["abs_of"] = (x.key, tuple(x.shape))
    return made


@model("sign", "sgn", inf=True)
def sign(at: At, x: Span) -> Span:
    return x.like(torch.sign(x.lo), torch.sign(x.hi))


@model("floor", "ceil", "round", "trunc", "frac")
def steps(at: At, x: Span, **more: Any) -> Span:
    if at.name == "frac":
        return x.like(torch.full_like(x.lo, -1.0), torch.full_like(x.lo, 1.0))
    if more.get("decimals"):
        return x.like(x.lo - 1, x.hi + 1)
    f = {"floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc}
    return x.like(f[at.name](x.lo), f[at.name](x.hi))


@model("sin", "cos")
def wave(at: At, x: Span) -> Span:
    f = torch.sin if at.name == "sin" else torch.cos
    is_point = x.lo == x.hi
    one = torch.ones_like(x.lo)
    lo, hi = torch.where(is_point, f(x.lo) - 1e-6, -one), torch.where(is_point, f(x.lo) + 1e-6, one)
    return x.like(lo.clamp(-1, 1), hi.clamp(-1, 1))


@model("exp", "exp2", "expm1", inf=True)
def exponential(at: At, x: Span) -> Span:
    f = {"exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1}[at.name]
    shift = -1.0 if at.name == "expm1" else 0.0
    made = monotone(at, x, f, low=shift)
    if shift == 0.0:  # what is below the normal numbers may be flushed
        made.lo = torch.where(made.lo < 2 * tiny_of(at.dtype), torch.zeros_like(made.lo), made.lo)
        # At 0 it is 1 exactly, and on either side of it on one side of 1.
        made.hi = torch.where(x.hi <= 0, made.hi.clamp(max=1.0), made.hi)
        made.lo = torch.where(x.lo >= 0, made.lo.clamp(min=1.0), made.lo)
    name = x.words or "its argument"
    at.overflow = _overflow(
        at, x, "exp_overflow", f"{name} is large enough for {at.name} to overflow"
    )
    if "zero_max" in x.facts and at.name == "exp":
        made.facts["has_one"] = x.facts["zero_max"]
        made.hi = made.hi.clamp(max=1.0)
    return made


def _overflow(at: At, x: Span, kind: str, condition: str) -> Failure:
    low = float(x.lo.min()) if x.lo.numel() else None
    high = float(x.hi.max()) if x.hi.numel() else None
    is_near = x.seen is not None and x.seen[1] * 10 > math.log(torch.finfo(at.dtype).max)
    return Failure(kind, condition, low, high, is_loose(x) and not is_near, x.key)


@model("log", "log2", "log10", "log1p", inf=True)
def logarithm(at: At, x: Span) -> Span:
    edge = -1.0 if at.name == "log1p" else 0.0
    name = x.words or f"the argument of {at.name}"
    at.fail("domain_error", x.lo < edge, f"{name} is below {edge:g}", x)
    at.fail("log_of_zero", (x.lo <= edge) & (x.hi >= edge), f"{name} reaches {edge:g}", x)
    f = {"log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p}[at.name]
    bad = x.lo <= edge
    lo, hi = widened(f(x.lo), f(x.hi), at.dtype, _ULPS)
    nan = torch.full_like(lo, math.nan)
    return x.like(torch.where(bad, nan, lo), torch.where(x.hi <= edge, nan, hi))


@model("sqrt")
def root(at: At, x: Span) -> Span:
    at.fail("domain_error", x.lo < 0, f"{x.words or 'the argument of sqrt'} is negative", x)
    made = x.like(
        torch.where(x.lo < 0, math.nan, x.lo.clamp(min=0).sqrt()), x.hi.clamp(min=0).sqrt()
    )
    if "sumsq_of" in x.facts:
        key, shape, dims, factor = x.facts["sumsq_of"]
        made.facts["norm_of"] = (key, shape, dims, math.sqrt(factor))
        at.words = "the norm of " + (
            x.words.removeprefix("the sum of squares of ") or "its argument"
        )
    else:
        at.words = f"the root of {x.words}" if x.words else ""
    return made


@model("rsqrt")
def inverse_root(at: At, x: Span) -> Span:
    name = x.words or "the argument of rsqrt"
    at.fail("domain_error", x.lo < 0, f"{name} is negative", x)
    at.fail("zero_denominator", x.lo == 0, f"{name} is 0", x)
    lo, hi = widened(x.hi.rsqrt(), x.lo.rsqrt(), at.dtype, _ULPS)
    made = x.like(lo.clamp(min=0), torch.where(x.lo <= 0, math.nan, hi))
    if "sumsq_of" in x.facts:
        key, shape, dims, factor = x.facts["sumsq_of"]
        made.facts["inv_norm_of"] = (key, shape, dims, math.sqrt(factor))
    return made


@model("reciprocal")
def reciprocal(at: At, x: Span) -> Span:
    holds_zero = (x.lo <= 0) & (x.hi >= 0)
    at.fail("zero_denominator", holds_zero, f"{x.words or 'the denominator'} is 0", x)
    ends = torch.stack([1 / x.lo, 1 / x.hi])
    nan = torch.full_like(x.lo, math.nan)
    return x.like(
        torch.where(holds_zero, nan, ends.amin(0)), torch.where(holds_zero, nan, ends.amax(0))
    )


@model("acos", "asin", "atanh", "acosh", "arccos", "arcsin")
def inverse_waves(at: At, x: Span) -> Span:
    name = f"{x.words or f'the argument of {at.name}'}"
    if at.name == "acosh":
        at.fail("domain_error", x.lo < 1, f"{name} is below 1", x)
        return x.like(torch.acosh(x.lo.clamp(min=1)), torch.acosh(x.hi.clamp(min=1)) * (1 + 1e-6))
    is_open = at.name == "atanh"
    beyond = x.mag >= 1 if is_open else x.mag > 1
    at.fail("domain_error", beyond, f"{name} {'reaches' if is_open else 'is beyond'} -1 or 1", x)
    if is_open:
        inner = 1 - 1e-7
        return monotone(
            at, x.like(x.lo.clamp(-inner, inner), x.hi.clamp(-inner, inner)), torch.atanh
        )
    if "asin" in at.name or "arcsin" in at.name:
        return x.like(torch.full_like(x.lo, -1.571), torch.full_like(x.lo, 1.571))
    return x.like(torch.zeros_like(x.lo), torch.full_like(x.lo, 3.1416))


@model("gelu", "silu", "mish", "hardswish")
def swish(at: At, x: Span, *_: Any, **__: Any) -> Span:
    """All of them dip once to at most -0.38, and rise after it."""
    dip = torch.full_like(x.lo, -0.5)
    zero = torch.zeros_like(x.lo)
    lo = torch.where(x.lo >= 0, zero, torch.maximum(dip, torch.minimum(x.lo, zero)))
    return x.like(lo, x.hi.clamp(min=0))


@model("softplus")
def softplus(at: At, x: Span, beta: float = 1, threshold: float = 20) -> Span:
    made = monotone(at, x, lambda v: torch.nn.functional.softplus(v, beta, threshold), low=0.0)
    made.lo = torch.where(made.lo < 2 * tiny_of(at.dtype), torch.zeros_like(made.lo), made.lo)
    # The kernel takes log1p(exp(x)): where exp(x) is below the rounding of 1 it may give less.
    return x.like(made.lo, made.hi * (1 + 1e-6))


@model("elu", "celu", "selu")
def elu(at: At, x: Span, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Span:
    low = -abs(float(alpha)) * abs(float(scale))
    if alpha < 0 or scale < 0:
        raise NotModeled("a negative slope")
    lo = torch.where(x.lo < 0, torch.full_like(x.lo, low), x.lo * scale)
    return x.like(lo, x.hi.clamp(min=0) * scale)


@model("leaky_relu")
def leaky_relu(at: At, x: Span, negative_slope: float = 0.01) -> Span:
    if negative_slope < 0:
        raise NotModeled("a negative slope")
    return monotone(at, x, lambda v: torch.where(v > 0, v, v * negative_slope))


@model("log_sigmoid_forward")
def log_sigmoid(at: At, x: Span) -> tuple[Span, Span]:
    f = torch.nn.functional.logsigmoid
    made = x.like((f(x.lo) * (1 + 1e-6)), f(x.hi).clamp(max=0.0))
    made.hi = torch.where(made.hi.abs() < 1e-6, torch.zeros_like(made.hi), made.hi)
    return made, Span(torch.zeros(()), torch.ones(()), at.dtype)


@model("hardtanh", "clamp", "clamp_min", "clamp_max", "threshold", inf=True)
def clamp(at: At, x: Span, *limits: Any, **more: Any) -> Span:
    low, high = _clamp_limits(at, limits, more)
    if at.name == "threshold":
        edge, value = float(limits[0]), float(limits[1])
        stays, falls = x.lo > edge, x.hi <= edge
        lo = torch.where(
            stays, x.lo, torch.where(falls, value, x.lo.clamp(min=edge).clamp(max=max(edge, value)))
        )
        lo = torch.where(stays, x.lo, torch.minimum(lo, torch.full_like(lo, value)))
        return x.like(lo, torch.where(falls, torch.full_like(x.hi, value), x.hi.clamp(min=value)))
    made = x.like(x.lo, x.hi)
    for bound, is_low in ((low, True), (high, False)):
        if bound is None:
            continue
        b = bound if isinstance(bound, Span) else None
        b_lo = b.lo if b else torch.tensor(float(bound), dtype=torch.float64)
        b_hi = b.hi if b else b_lo
        pick = torch.maximum if is_low else torch.minimum
        made.lo, made.hi = pick(made.lo, b_lo), pick(made.hi, b_hi)
    if high is None and low is not None:
        for fact in ("norm_of", "sum_of", "sumsq_of"):
            if fact in x.facts:
                made.facts[fact] = x.facts[fact]
    at.words = ""
    return made


def _clamp_limits(at: At, limits: Any, more: dict[str, Any]) -> tuple[Any, Any]:
    values = list(limits) + [None, None]
    if at.name == "clamp_min":
        return more.get("min", values[0]), None
    if at.name == "clamp_max":
        return None, more.get("max", values[0])
    if at.name == "hardtanh":
        given = [v for v in limits if v is not None]
        return (given[0] if given else -1.0), (given[1] if len(given) > 1 else 1.0)
    return more.get("min", values[0]), more.get("max", values[1])


@model("nan_to_num")
def nan_to_num(at: At, x: Span, *_: Any, **__: Any) -> Span:
    return x.like(x.lo.clamp(min=-3.4e38), x.hi.clamp(max=3.4e38))


@model("logit")
def logit(at: At, x: Span, eps: float | None = None) -> Span:
    lo, hi = x.lo, x.hi
    if eps is not None:
        edge = torch.tensor(float(eps), dtype=torch.float32).double()
        lo, hi = lo.clamp(float(edge), float(1 - edge)), hi.clamp(float(edge), float(1 - edge))
    name = x.words or "the argument of logit"
    at.fail("log_of_zero", (lo <= 0) | (hi >= 1), f"{name} reaches 0 or 1", x)
    inside = x.like(lo.clamp(1e-38, 1 - 1e-16), hi.clamp(1e-38, 1 - 1e-16))
    return loosened(monotone(at, inside, torch.logit), _own_eps(at))


@model("lgamma", "digamma")
def gamma(at: At, x: Span) -> Span:
    at.fail("domain_error", x.lo <= 0, f"{x.words or f'the argument of {at.name}'} reaches 0", x)
    if at.name == "digamma":
        inside = x.like(x.lo.clamp(min=1e-30), x.hi.clamp(min=1e-30))
        return loosened(monotone(at, inside, torch.digamma), 8 * _own_eps(at))
    ends = torch.stack([torch.lgamma(x.lo.clamp(min=1e-38)), torch.lgamma(x.hi.clamp(min=1e-38))])
    return x.like(ends.amin(0).clamp(max=-0.1215) - 1e-5, ends.amax(0) * (1 + 1e-6) + 1e-5)

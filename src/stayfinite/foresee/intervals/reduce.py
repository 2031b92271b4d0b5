"""Models of reductions: sums, means, extremes, norms, variances, softmax and its kin."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .arithmetic import extreme
from .call import MODELS, At, NotModeled, model
from .rounding import eps_of
from .shadow import Span

__all__ = ["dims_of", "rows_of", "softmax_check"]


def dims_of(x: Span, dim: Any) -> tuple[int, ...]:
    """The dimensions that are reduced, from 0; all for None or an empty list."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(x.lo.dim()))
    given = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted({d % max(1, x.lo.dim()) for d in given})) if x.lo.dim() else ()


def rows_of(x: Span, dims: tuple[int, ...]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _reduced(t: Tensor, dims: tuple[int, ...], keepdim: bool, how: str) -> Tensor:
    if not dims:
        return t
    return getattr(t, how)(dim=dims, keepdim=keepdim)  # type: ignore[no-any-return]


def _sum(at: At, x: Span, dims: tuple[int, ...], keepdim: bool) -> Span:
    lo, hi = _reduced(x.lo, dims, keepdim, "sum"), _reduced(x.hi, dims, keepdim, "sum")
    total = _reduced(x.mag, dims, keepdim, "sum")
    n = rows_of(x, dims)
    error = total * (eps_of(at.dtype) * n) if n > 1 and at.dtype.is_floating_point else 0.0
    error = torch.nan_to_num(torch.as_tensor(error, dtype=torch.float64), 0.0, 0.0, 0.0)
    low, high = lo - error, hi + error
    if n and x.lo.numel():
        is_positive = _reduced((x.lo >= 0).double(), dims, keepdim, "amin") == 1
        floor = _reduced(x.lo, dims, keepdim, "amax")
        low = torch.where(is_positive, torch.maximum(low, floor), low)
        is_negative = _reduced((x.hi <= 0).double(), dims, keepdim, "amin") == 1
        high = torch.where(
            is_negative, torch.minimum(high, _reduced(x.hi, dims, keepdim, "amin")), high
        )
    if at.dtype.is_floating_point and bool(x.mag.isfinite().all()):
        at.check_sum(total)
    if at.variable is not None and at.variable[0] in x.shape:
        many = at.variable[2] / max(1, at.variable[0])
        low, high = low.clamp(max=0) * many, high.clamp(min=0) * many
    return Span(low, high, at.dtype)


@model("sum", inf=True)
def total(at: At, x: Span, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Span:
    dims = dims_of(x, dim)
    made = _sum(at, x, dims, keepdim)
    if "has_one" in x.facts and set(x.facts["has_one"]) <= set(dims) and bool((x.lo >= 0).all()):
        made.lo = made.lo.clamp(min=1.0)
    if x.key is not None:
        made.facts["sum_of"] = (x.key, tuple(x.shape), dims, 1.0)
    if "square_of" in x.facts:
        made.facts["sumsq_of"] = (*x.facts["square_of"], dims, 1.0)
    if x.words:
        inner = x.words.removeprefix("the square of ")
        at.words = f"the sum of {'squares of ' + inner if inner != x.words else inner}"
    return made


@model("mean")
def mean(at: At, x: Span, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Span:
    dims = dims_of(x, dim)
    n = rows_of(x, dims)
    at.fail("empty_reduction", n == 0, "the mean is over nothing")
    if at.variable is not None and at.variable[0] in [x.shape[d] for d in dims]:
        at.fail("empty_reduction", True, at.variable[1])
    if n == 0:
        nan = torch.full(_reduced(x.lo, dims, keepdim, "sum").shape, math.nan, dtype=torch.float64)
        return Span(nan, nan, at.dtype)
    variable, at.variable = at.variable, None
    made = _sum(at, x, dims, keepdim)
    at.variable = variable
    made = Span(made.lo / n, made.hi / n, at.dtype)
    if variable is not None:
        made = Span(
            _reduced(x.lo, dims, keepdim, "amin"), _reduced(x.hi, dims, keepdim, "amax"), at.dtype
        )
        slack = made.mag * 1e-4
        made = Span(made.lo - slack, made.hi + slack, at.dtype)
    if "square_of" in x.facts:
        made.facts["sumsq_of"] = (*x.facts["square_of"], dims, float(n))
    at.words = f"the mean of {x.words}" if x.words else ""
    return made


@model("prod")
def prod(at: At, x: Span, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Span:
    dims = dims_of(x, dim)
    n = rows_of(x, dims)
    top = _reduced(x.mag.clamp(min=1e-300).log(), dims, keepdim, "sum").exp() * (
        1 + 1e-5 * max(1, n)
    )
    positive = bool((x.lo >= 0).all())
    return Span(torch.zeros_like(top) if positive else -top, top, at.dtype)


@model("amax", "amin", inf=True)
def amax(at: At, x: Span, dim: Any = (), keepdim: bool = False) -> Span:
    return _extreme(at, x, dims_of(x, dim), keepdim, "amax" in at.name)


def _extreme(at: At, x: Span, dims: tuple[int, ...], keepdim: bool, is_max: bool) -> Span:
    how = "amax" if is_max else "amin"
    made = Span(_reduced(x.lo, dims, keepdim, how), _reduced(x.hi, dims, keepdim, how), at.dtype)
    if x.key is not None:
        made.facts[how] = (x.key, tuple(x.shape), dims)
    if is_max and "abs_of" in x.facts:
        made.facts["norm_of"] = (*x.facts["abs_of"], dims, 1.0)
    at.words = f"the {'largest' if is_max else 'smallest'} of {x.words}" if x.words else ""
    return made


def _max(at: At, x: Span, *more: Any, **named: Any) -> Any:
    """max(x), max(x, y) and max(x, dim)."""
    is_max = "max" in at.name
    if not more and "dim" not in named and "other" not in named:
        return _extreme(at, x, dims_of(x, None), False, is_max)
    other = named.get("other", more[0] if more else None)
    if isinstance(other, Span):
        return extreme(at, x, other)
    dim: Any = named.get("dim", other)
    keepdim = bool(named.get("keepdim", more[1] if len(more) > 1 else False))
    values = _extreme(at, x, dims_of(x, dim), keepdim, is_max)
    return values, _index_span(values.lo, x.shape[dim] if x.lo.dim() else 1)


MODELS["max"] = MODELS["min"] = _max


def _index_span(like: Tensor, size: int) -> Span:
    return Span(torch.zeros_like(like), torch.full_like(like, max(0, size - 1)), torch.int64)


@model("argmax", "argmin")
def argmax(at: At, x: Span, dim: Any = None, keepdim: bool = False) -> Span:
    dims = dims_of(x, dim)
    return _index_span(_reduced(x.lo, dims, keepdim, "amax"), rows_of(x, dims))


@model("any", "all")
def any_all(at: At, x: Span, dim: Any = None, keepdim: bool = False) -> Span:
    dims = dims_of(x, dim)
    how = "amax" if at.name == "any" else "amin"
    low = x.lo if x.dtype is torch.bool else (x.lo * x.hi > 0).double()
    high = x.hi if x.dtype is torch.bool else ((x.lo != 0) | (x.hi != 0)).double()
    return Span(_reduced(low, dims, keepdim, how), _reduced(high, dims, keepdim, how), torch.bool)


@model("count_nonzero")
def count_nonzero(at: At, x: Span, dim: Any = None) -> Span:
    dims = dims_of(x, dim)
    low = ((x.lo > 0) | (x.hi < 0)).double()
    high = ((x.lo != 0) | (x.hi != 0)).double()
    at.words = f"the count of {x.words}" if x.words else ""
    return Span(_reduced(low, dims, False, "sum"), _reduced(high, dims, False, "sum"), torch.int64)


@model("linalg_vector_norm", "norm")
def vector_norm(
    at: At, x: Span, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Span:
    dims = dims_of(x, dim)
    order = 2.0 if ord is None else float(ord)
    size = x.like(
        torch.where((x.lo <= 0) & (x.hi >= 0), 0.0, torch.minimum(x.lo.abs(), x.hi.abs())), x.mag
    )
    at.words = f"the norm of {x.words}" if x.words else "the norm"
    if math.isinf(order):
        made = Span(
            _reduced(size.lo, dims, keepdim, "amax"),
            _reduced(size.hi, dims, keepdim, "amax"),
            at.dtype,
        )
    elif order in (1.0, 2.0):
        made = _power_norm(at, size, dims, keepdim, order)
    else:
        raise NotModeled(f"the norm of order {order:g}")
    if x.key is not None:
        made.facts["norm_of"] = (x.key, tuple(x.shape), dims, 1.0)
    return made


def _power_norm(at: At, size: Span, dims: tuple[int, ...], keepdim: bool, order: float) -> Span:
    powered = size if order == 1 else size.like(size.lo**2, size.hi**2)
    if order == 2:  # squares below the smallest number are lost
        wide = torch.float64 if at.dtype is torch.float64 else torch.float32
        tiny = torch.finfo(wide).tiny
        powered.lo = torch.where(powered.lo < tiny, torch.zeros_like(powered.lo), powered.lo)
    summed = _sum(at, powered, dims, keepdim)
    if order == 1:
        return summed
    return Span(
        summed.lo.clamp(min=0).sqrt() * (1 - 1e-6),
        summed.hi.clamp(min=0).sqrt() * (1 + 1e-6),
        at.dtype,
    )


@model("var", "std", "var_mean", "std_mean")
def variance(
    at: At,
    x: Span,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    correction: Any = None,
) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = dims_of(x, dim)
    n = rows_of(x, dims)
    less = (
        float(correction) if correction is not None else float(1 if unbiased is None else unbiased)
    )
    _check_count(at, x, dims, n, less)
    width = _reduced(x.hi, dims, keepdim, "amax") - _reduced(x.lo, dims, keepdim, "amin")
    top = (width * width / 4) * (n / max(n - less, 1e-9)) * (1 + 1e-4)
    at.check_sum(top * n)
    root = "std" in at.name
    made = Span(torch.zeros_like(top), top.sqrt() * (1 + 1e-6) if root else top, at.dtype)
    at.words = f"the {'standard deviation' if root else 'variance'} of {x.words or 'its input'}"
    if "mean" not in at.name:
        return made
    middle = Span(
        _reduced(x.lo, dims, keepdim, "mean"), _reduced(x.hi, dims, keepdim, "mean"), at.dtype
    )
    slack = (middle.mag + width) * 1e-4
    return made, Span(middle.lo - slack, middle.hi + slack, at.dtype)


def _check_count(at: At, x: Span, dims: tuple[int, ...], n: int, less: float) -> None:
    at.fail("empty_reduction", n - less <= 0, f"the variance is over {n} element(s)")
    sizes = [x.shape[d] for d in dims]
    if at.captured_size in sizes and at.captured_size and n > less:
        for size in at.batch_sizes:
            if n // at.captured_size * size - less <= 0:
                at.fail("empty_reduction", True, f"the batch has {size} row(s)")
                break
    if at.variable is not None and at.variable[0] in sizes:
        at.fail("empty_reduction", True, at.variable[1])


def softmax_check(at: At, x: Span, dim: int) -> None:
    """A row fails when all of it can be -inf, or when one of it can be inf."""
    if not x.lo.numel():
        return
    all_masked = _reduced((x.lo == -math.inf).double(), dims_of(x, dim), True, "amin") == 1
    at.fail("fully_masked_row", all_masked, "every entry of a row is masked (-inf)")
    at.fail("domain_error", x.hi == math.inf, "an entry is inf")


def _softmax_range(x: Span, dim: int) -> tuple[Tensor, Tensor]:
    """log of the smallest and largest share of each element."""
    dims = dims_of(x, dim)
    if not dims or not x.lo.numel():
        return torch.zeros_like(x.lo), torch.zeros_like(x.lo)
    others_hi = torch.logsumexp(x.hi.clamp(min=-1e300), dim=dims, keepdim=True)
    gap = (x.lo - others_hi).clamp(max=0.0)
    low_all = x.lo.clamp(min=-1e300)
    # At most: itself at its top beside the others at their bottom.
    others_lo = torch.logsumexp(low_all, dim=dims, keepdim=True)
    share = torch.where(x.lo == -math.inf, torch.zeros_like(x.lo), torch.exp(low_all - others_lo))
    rest = others_lo + torch.log1p(-share.clamp(max=1.0))
    top = torch.where(
        share > 1 - 1e-9,
        torch.zeros_like(rest),
        -torch.logaddexp(torch.zeros_like(rest), rest - x.hi),
    )
    return gap, torch.nan_to_num(top, 0.0, 0.0, -math.inf).clamp(max=0.0)


@model("_softmax", "_safe_softmax", inf=True)
def softmax(at: At, x: Span, dim: int = -1, *_: Any, **__: Any) -> Span:
    if "safe" not in at.name:
        softmax_check(at, x, dim)
    low, high = _softmax_range(x, dim)
    lo = low.exp() * (1 - 1e-4)
    lo = torch.where(lo < 2 * torch.finfo(at.dtype).tiny, torch.zeros_like(lo), lo)
    made = Span(lo, (high.exp() * (1 + 1e-4)).clamp(max=1.0), at.dtype)
    if "safe" in at.name:
        made.lo = torch.zeros_like(made.lo)
    made.facts["softmax"] = dims_of(x, dim)
    return made


@model("_log_softmax", inf=True)
def log_softmax(at: At, x: Span, dim: int = -1, *_: Any, **__: Any) -> Span:
    softmax_check(at, x, dim)
    low, high = _softmax_range(x, dim)
    slack = 1e-4 * low.abs().clamp(min=1.0)
    slack = torch.where(slack.isfinite(), slack, torch.zeros_like(slack))
    # It is the difference of two numbers of the size of x, and rounded as they are.
    size = torch.where(x.mag.isfinite(), x.mag, torch.zeros_like(x.mag))
    size = size.amax(dims_of(x, dim), keepdim=True) if size.dim() and size.numel() else size
    rounding = 16 * eps_of(at.dtype) * (size + math.log(max(2, x.lo.numel())))
    return Span(low - slack - rounding, (high * (1 - 1e-4) + rounding).clamp(max=0.0), at.dtype)


@model("logsumexp", inf=True)
def logsumexp(at: At, x: Span, dim: Any, keepdim: bool = False) -> Span:
    dims = dims_of(x, dim)
    at.fail("domain_error", x.hi == math.inf, "an entry is inf")
    lo = torch.logsumexp(x.lo, dim=dims, keepdim=keepdim)
    hi = torch.logsumexp(x.hi, dim=dims, keepdim=keepdim)
    made = Span(lo - lo.abs() * 1e-5 - 1e-5, hi + hi.abs() * 1e-5 + 1e-5, at.dtype)
    made.lo = torch.where(made.lo.isnan(), lo, made.lo)
    if x.key is not None:
        made.facts["lse"] = (x.key, tuple(x.shape), dims)
    return made


@model("cumsum", "cumprod", "logcumsumexp")
def cumulative(at: At, x: Span, dim: int, dtype: Any = None) -> Span:
    if at.name == "cumprod":
        top = x.mag.clamp(min=1e-300).log().cumsum(dim).exp() * (1 + 1e-4)
        low = torch.zeros_like(top) if bool((x.lo >= 0).all()) else -top
        return Span(low, top, at.dtype)
    if at.name == "logcumsumexp":
        lo, hi = torch.logcumsumexp(x.lo, dim), torch.logcumsumexp(x.hi, dim)
        return Span(lo - lo.abs() * 1e-5 - 1e-5, hi + hi.abs() * 1e-5 + 1e-5, at.dtype)
    n = x.shape[dim] if x.lo.dim() else 1
    error = x.mag.cumsum(dim) * (eps_of(at.dtype) * n) if at.dtype.is_floating_point else 0.0
    low, high = x.lo.cumsum(dim) - error, x.hi.cumsum(dim) + error
    if bool((x.lo >= 0).all()):
        low = low.clamp(min=0.0)
    return Span(low, high, at.dtype)

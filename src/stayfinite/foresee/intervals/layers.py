"""Models of normalization layers, losses and random numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from .arithmetic import difference, product, square
from .call import At, model
from .pointwise import monotone
from .shadow import Span

__all__ = ["normalized"]


def normalized(at: At, x: Span, dims: tuple[int, ...], eps: float) -> tuple[Span, Span, Span]:
    """(x - mean) / sqrt(var + eps), the mean and 1 / sqrt(var + eps), over `dims`."""
    n = math.prod(x.shape[d] for d in dims)
    low, high = x.lo.mean(dims, keepdim=True), x.hi.mean(dims, keepdim=True)
    width = x.hi.amax(dims, keepdim=True) - x.lo.amin(dims, keepdim=True)
    at.check_sum(torch.maximum(width, x.mag.amax(dims, keepdim=True)) ** 2 * n)
    at.fail("zero_denominator", eps <= 0, "the variance is 0", x)
    floor = max(eps, 1e-30)
    var = width * width / 4 * (1 + 1e-3)
    slack = 1e-4 * x.mag.amax(dims, keepdim=True)
    mean = Span(low - slack, high + slack, x.dtype)
    inverse = Span(
        (var + floor).rsqrt() * (1 - 1e-4), torch.full_like(var, floor**-0.5) * (1 + 1e-3), x.dtype
    )
    reach = torch.maximum(x.hi - low, high - x.lo) + slack
    # One element is at most sqrt(n - 1) deviations from the mean; rounding may add a little where
    # the deviations are as small as the rounding of the numbers themselves.
    noise = 64 * 1.2e-7 * x.mag.amax(dims, keepdim=True) / math.sqrt(floor)
    bound = torch.minimum(math.sqrt(n) * 1.01 + noise, reach * floor**-0.5)
    return Span(-bound, bound, x.dtype), mean, inverse


def _affine(x: Span, weight: Span | None, bias: Span | None, shape: Any) -> Span:
    if weight is not None:
        top = x.mag * weight.mag.view(shape)
        x = Span(-top, top, x.dtype)
    if bias is not None:
        x = Span(x.lo + bias.lo.view(shape), x.hi + bias.hi.view(shape), x.dtype)
    slack = x.mag * 1e-3
    return Span(x.lo - slack, x.hi + slack, x.dtype)


@model("native_layer_norm")
def layer_norm(
    at: At, x: Span, shape: Any, weight: Span | None, bias: Span | None, eps: float
) -> tuple[Span, ...]:
    dims = tuple(range(x.lo.dim() - len(shape), x.lo.dim()))
    unit, mean, inverse = normalized(at, x, dims, eps)
    return _affine(unit, weight, bias, tuple(shape)), mean, inverse


@model("native_group_norm")
def group_norm(at: At, x: Span, weight: Span | None, bias: Span | None, n: int, c: int, hw: int, group: int,
               eps: float) -> tuple[Span, ...]:  # fmt: skip
    grouped = x.mapped(lambda t: t.reshape(n, group, -1))
    unit, mean, inverse = normalized(at, grouped, (2,), eps)
    unit = unit.mapped(lambda t: t.expand(n, group, c // group * hw).reshape(x.shape))
    shape = (1, c) + (1,) * (x.lo.dim() - 2)
    flat = [s.mapped(lambda t: t.reshape(n, group)) for s in (mean, inverse)]
    return _affine(unit, weight, bias, shape), flat[0], flat[1]


@model("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
       "cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update")  # fmt: skip
def batch_norm(at: At, x: Span, weight: Span | None, bias: Span | None, mean: Span | None, var: Span | None,
               *more: Any) -> tuple[Span, ...]:  # fmt: skip
    is_training = (
        bool(more[0]) if isinstance(more[0], bool) else at.name == "_batch_norm_with_update"
    )
    eps = float(more[-1])
    dims = tuple(d for d in range(x.lo.dim()) if d != 1)
    shape = (1, -1) + (1,) * (x.lo.dim() - 2)
    if is_training:
        unit, m, inverse = normalized(at, x, dims, eps)
        out = _affine(unit, weight, bias, shape)
        return out, m.mapped(lambda t: t.flatten()), inverse.mapped(lambda t: t.flatten())
    assert mean is not None and var is not None
    floor = var.lo + eps
    at.fail("zero_denominator", floor <= 0, "running_var + eps is 0", var)
    centered = difference(at, x, mean.mapped(lambda t: t.view(shape)))
    scale = floor.clamp(min=1e-30).rsqrt().view(shape)
    top = centered.mag * scale
    empty = Span(torch.zeros(0), torch.zeros(0), at.dtype)
    return _affine(Span(-top, top, x.dtype), weight, bias, shape), empty, empty


@model("embedding", inf=True)
def embedding(at: At, weight: Span, index: Span, *_: Any, **__: Any) -> Span:
    if index.is_point:
        i = index.lo.long().clamp(0, weight.shape[0] - 1)
        return weight.mapped(lambda t: t[i])
    low = max(0, int(index.lo.min()))
    high = min(weight.shape[0] - 1, int(index.hi.max()))
    rows = weight.mapped(lambda t: t[low : high + 1])
    shape = (*index.shape, *weight.shape[1:])
    return Span(rows.lo.amin(0).expand(shape), rows.hi.amax(0).expand(shape), at.dtype)


def _reduce_loss(at: At, each: Span, reduction: int, eps: float = 1.2e-7) -> Span:
    if reduction == 0:
        return each
    if reduction == 1 and at.variable is not None:
        at.fail("empty_reduction", True, at.variable[1])
    at.fail("empty_reduction", reduction == 1 and each.lo.numel() == 0, "the mean is over nothing")
    n = max(1, each.lo.numel())
    slack = each.mag.sum() * eps * n
    divisor = n if reduction == 1 else 1
    low = ((each.lo.sum() - slack) / divisor).clamp(
        min=0.0 if bool((each.lo >= 0).all()) else -math.inf
    )
    return Span(low, (each.hi.sum() + slack) / divisor, at.dtype)


@model("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def distance_loss(at: At, x: Span, y: Span, reduction: int = 1, *_: Any, **named: Any) -> Span:
    gap = difference(at, x, y)
    at.check_sum(gap.mag**2 * max(1, gap.lo.numel()))
    each = square(At(at.call, at.dtype), gap)
    if at.name != "mse_loss":
        each = Span(
            torch.zeros_like(gap.lo),
            gap.mag * max(1.0, 2.0 * float(named.get("delta", 1.0))) + 1,
            at.dtype,
        )
    return _reduce_loss(
        at, Span(each.lo, each.hi * (1 + 1e-5), at.dtype), int(named.get("reduction", reduction))
    )


@model("binary_cross_entropy")
def binary_cross_entropy(
    at: At, x: Span, y: Span, weight: Span | None = None, reduction: int = 1
) -> Span:
    """The kernel cuts its logarithms off at -100."""
    top = (
        100.0
        * torch.maximum(y.mag, (1 - y.lo).abs()).clamp(min=1.0)
        * (weight.mag if weight else 1.0)
    )
    return _reduce_loss(
        at,
        Span(-top if bool((y.lo < 0).any()) else torch.zeros_like(top), 2 * top, at.dtype),
        reduction,
    )


@model("binary_cross_entropy_with_logits")
def bce_with_logits(at: At, x: Span, y: Span, weight: Span | None = None, pos_weight: Span | None = None,
                    reduction: int = 1) -> Span:  # fmt: skip
    factor = 1.0 if pos_weight is None else pos_weight.mag + 1.0
    top = (x.mag * (1 + y.mag) + 1.0) * factor * (weight.mag if weight else 1.0) * (1 + y.mag)
    low = torch.zeros_like(top) if bool((y.lo >= 0).all()) and bool((y.hi <= 1).all()) else -top
    return _reduce_loss(at, Span(low, top, at.dtype), reduction)


@model("nll_loss_forward", "nll_loss2d_forward", inf=True)
def nll_loss(
    at: At, x: Span, target: Span, weight: Span | None, reduction: int, ignore_index: int
) -> tuple[Span, Span]:
    picked = _picked(x, target, ignore_index)
    at.fail(
        "infeasible_target",
        picked.lo == -math.inf,
        "the target's class has probability 0 (-inf)",
        x,
    )
    may_skip = (target.lo <= ignore_index) & (target.hi >= ignore_index)
    zero = torch.zeros_like(picked.lo)
    low = torch.where(may_skip, torch.minimum(-picked.hi, zero), -picked.hi)
    high = torch.where(may_skip, torch.maximum(-picked.lo, zero), -picked.lo)
    if weight is not None:
        top = high.abs().maximum(low.abs()) * weight.mag.max()
        low, high = torch.where(low >= 0, zero, -top), top
    if reduction == 1:
        name = target.words or "the labels"
        at.fail(
            "empty_reduction",
            may_skip.all(),
            f"every one of {name} is ignored ({ignore_index})",
            target,
        )
        if weight is not None:
            at.fail(
                "empty_reduction",
                bool((weight.lo <= 0).any()),
                "the weights of the labels sum to 0",
                weight,
            )
        if at.variable is not None:
            at.fail("empty_reduction", True, at.variable[1])
    each = Span(low, high, at.dtype)
    n = max(1, low.numel())
    eps = torch.finfo(at.dtype).eps  # the kernel adds up in the dtype of the result
    if reduction != 0:
        at.check_sum(each.mag[each.mag.isfinite()].sum() * (1 + n * eps), is_own=True)
    count = Span(
        torch.zeros(()),
        torch.tensor(float(n) * (float(weight.mag.max()) if weight else 1.0)),
        at.dtype,
    )
    if reduction == 1 and bool(may_skip.any() | (weight is not None)):
        # A mean over those that count: between the smallest and the largest of them.
        lo, hi = torch.minimum(low.min(), zero.min()), high.max()
        return Span(lo - lo.abs() * 1e-4, hi + hi.abs() * 1e-4, at.dtype), count
    return _reduce_loss(at, each, reduction, eps), count


def _picked(x: Span, target: Span, ignore_index: int) -> Span:
    """The value of the target's class; any class it can be."""
    dim = 1 if x.lo.dim() > 1 else 0
    if target.is_point:
        t = target.lo.long()
        t = torch.where(t == ignore_index, torch.zeros_like(t), t).clamp(0, x.shape[dim] - 1)
        return x.mapped(lambda v: v.gather(dim, t.unsqueeze(dim)).squeeze(dim))
    kept = target.hi.max(), target.lo.min()
    low, high = max(0, int(kept[1])), min(x.shape[dim] - 1, max(0, int(kept[0])))
    part = x.mapped(lambda v: v.narrow(dim, low, high - low + 1))
    return Span(part.lo.amin(dim), part.hi.amax(dim), x.dtype)


@model("cosine_similarity")
def cosine(at: At, x: Span, y: Span, dim: int = 1, eps: float = 1e-8) -> Span:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    made = torch.zeros(shape, dtype=torch.float64).sum(dim)
    return Span(torch.full_like(made, -1.001), torch.full_like(made, 1.001), at.dtype)


@model("glu")
def glu(at: At, x: Span, dim: int = -1) -> Span:
    a, b = (Span(x.lo.chunk(2, dim)[i], x.hi.chunk(2, dim)[i], x.dtype) for i in (0, 1))
    gate = monotone(at, b, torch.sigmoid, 0.0, 1.0)
    return product(at, a, gate)

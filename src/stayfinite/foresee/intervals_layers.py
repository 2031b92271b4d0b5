"""Models of normalization layers, losses and random numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from .intervals_arithmetic import difference, hull, product, square
from .intervals_at import At, NotModeled, model
from .intervals_pointwise import monotone
from .rounding import limit_of
from .shadow import Span
from .tape import refs_in

__all__ = ["normalized"]

_NORMAL = 8.7
"""No draw of a normal number is further out: the uniform number below it has at most 53 bits."""


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
    noise = 2e-6 * n * x.mag.amax(dims, keepdim=True) / math.sqrt(floor)
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


def _reduce_loss(at: At, each: Span, reduction: int) -> Span:
    if reduction == 0:
        return each
    if reduction == 1 and at.variable is not None:
        at.fail("empty_reduction", True, at.variable[1])
    at.fail("empty_reduction", reduction == 1 and each.lo.numel() == 0, "the mean is over nothing")
    n = max(1, each.lo.numel())
    slack = each.mag.sum() * 1.2e-7 * n
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
    count = Span(
        torch.zeros(()),
        torch.tensor(float(n) * (float(weight.mag.max()) if weight else 1.0)),
        at.dtype,
    )
    if reduction == 1 and bool(may_skip.any() | (weight is not None)):
        # A mean over those that count: between the smallest and the largest of them.
        lo, hi = torch.minimum(low.min(), zero.min()), high.max()
        return Span(lo - lo.abs() * 1e-4, hi + hi.abs() * 1e-4, at.dtype), count
    return _reduce_loss(at, each, reduction), count


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


@model("rand", "rand_like", "uniform", "randn", "randn_like", "normal", "bernoulli", "exponential", "randint",
       "randint_like", "random", "multinomial", "randperm", "log_normal", "native_dropout", "cauchy",
       "geometric", "empty_permuted")  # fmt: skip
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
    if at.name == "bernoulli":
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


@model("cosine_similarity")
def cosine(at: At, x: Span, y: Span, dim: int = 1, eps: float = 1e-8) -> Span:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    made = torch.zeros(shape, dtype=torch.float64).sum(dim)
    return Span(torch.full_like(made, -1.001), torch.full_like(made, 1.001), at.dtype)


@model("glu")
def glu(at: At, x: Span, dim: int = -1) -> Span:
    a, b = (Span(*(t.chunk(2, dim)[i] for t in (x.lo, x.hi)), x.dtype) for i in (0, 1))
    gate = monotone(at, b, torch.sigmoid, 0.0, 1.0)
    return product(at, a, gate)


@model("mkldnn_rnn_layer")
def recurrent(at: At, x: Span, w_in: Span, w_hidden: Span, b1: Span, b2: Span, hidden: Span, cell: Span,
              *more: Any) -> tuple[Span, ...]:  # fmt: skip
    """A layer of an LSTM: its output is a tanh times a sigmoid, its cell grows by at most 1 a time."""
    refs = list(refs_in(at.call.results))
    if len(refs) < 3 or cell.lo.numel() == 0 or w_in.shape[0] != 4 * hidden.shape[-1]:
        raise NotModeled("a recurrent layer that is no LSTM")
    reach = torch.maximum(hidden.mag.max(), torch.ones((), dtype=torch.float64))
    at.check_sum(x.mag.max() * w_in.mag.sum(1) + reach * w_hidden.mag.sum(1) + b1.mag + b2.mag)
    one = torch.ones(refs[0].shape, dtype=torch.float64)
    top = (cell.mag.max() + x.shape[0] + x.shape[1]).expand(refs[2].shape)
    last = torch.ones(refs[1].shape, dtype=torch.float64)
    made = [Span(-one, one, at.dtype), Span(-last, last, at.dtype), Span(-top, top, at.dtype)]
    for ref in refs[3:]:  # what it keeps for its backward
        size = torch.full(
            ref.shape,
            255.0 if not ref.dtype.is_floating_point else float(top.max()),
            dtype=torch.float64,
        )
        made.append(Span(-size, size, ref.dtype))
    return tuple(made)


@model("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(at: At, weight: Span, index: Span, offsets: Span, scale: bool = False, mode: int = 0,
                  sparse: bool = False, each: Span | None = None, *_: Any) -> tuple[Span, ...]:  # fmt: skip
    """Sums (mode 0), means or largest of rows of the table; a bag may hold any number of them."""
    refs = list(refs_in(at.call.results))
    shape = refs[0].shape
    low, high = weight.lo.amin(0), weight.hi.amax(0)
    if mode == 0:
        many = index.lo.numel() * (float(each.mag.max()) if each is not None and each.lo.numel() else 1.0)
        top = torch.maximum(low.abs(), high.abs()) * many * 1.001
        low, high = (-top if each is not None or bool((low < 0).any()) else torch.zeros_like(top)), top
    zero = torch.zeros_like(low)  # a bag of nothing
    made = [Span(torch.minimum(low, zero).expand(shape), torch.maximum(high, zero).expand(shape), at.dtype)]
    for ref in refs[1:]:
        top = torch.full(ref.shape, float(max(1, index.lo.numel(), weight.shape[0])), dtype=torch.float64)
        made.append(Span(torch.zeros_like(top) - 1, top, ref.dtype))
    return tuple(made)


@model("_ctc_loss", inf=True)
def ctc_loss(at: At, x: Span, target: Span, lengths: Any, target_lengths: Any, blank: int = 0,
             zero_infinity: bool = False) -> tuple[Span, ...]:  # fmt: skip
    """A target needs a step for each label and one more between two that are the same."""
    if not isinstance(lengths, (list, tuple)) or not isinstance(target_lengths, (list, tuple)):
        raise NotModeled("lengths that are tensors")
    tight = any(2 * t - 1 > n for n, t in zip(lengths, target_lengths))
    at.fail("infeasible_target", tight and not zero_infinity, "a target does not fit into the length of its input")
    at.fail("infeasible_target", bool((x.lo == -math.inf).any()), "a label has probability 0 (-inf)", x)
    refs = list(refs_in(at.call.results))
    top = x.mag.clamp(max=1e30).sum((0, 2)) if x.lo.dim() == 3 else x.mag.sum()
    size = (top + 100.0).expand(refs[0].shape)
    spread = torch.full(refs[1].shape, float(size.max()), dtype=torch.float64)
    return Span(torch.zeros_like(size), size, at.dtype), Span(-spread, spread, at.dtype)

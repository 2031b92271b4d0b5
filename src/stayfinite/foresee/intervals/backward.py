"""Models of operators that only a backward calls."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..tape import refs_in
from .arithmetic import product
from .call import At, model
from .shadow import Span

__all__: list[str] = []


def _within(top: Tensor, dtype: torch.dtype) -> Span:
    top = top * 1.001
    return Span(-top, top, dtype)


def _times(at: At, grad: Span, low: float, high: float) -> Span:
    """A gradient times a derivative that is always between `low` and `high`."""
    size = Span(
        torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64), at.dtype
    )
    made = product(at, grad, size)
    slack = made.mag * 1e-4
    return Span(made.lo - slack, made.hi + slack, at.dtype)


_SLOPES = {
    "threshold_backward": (0.0, 1.0),
    "hardtanh_backward": (0.0, 1.0),
    "sigmoid_backward": (0.0, 0.2501),
    "tanh_backward": (0.0, 1.0001),
    "gelu_backward": (-0.2, 1.2),
    "silu_backward": (-0.2, 1.2),
    "mish_backward": (-0.2, 1.2),
    "hardswish_backward": (-0.6, 1.6),
    "hardsigmoid_backward": (0.0, 0.17),
    "softplus_backward": (0.0, 1.0001),
    "log_sigmoid_backward": (0.0, 1.0001),
}


def _register(name: str, low: float, high: float) -> None:
    @model(name)
    def slope(at: At, grad: Span, *_: Any, **__: Any) -> Span:
        made = _times(at, grad, low, high)
        return _shaped(at, made)


def _shaped(at: At, made: Span) -> Span:
    shape = next(refs_in(at.call.results)).shape
    return made.mapped(lambda t: t.expand(shape))


for _name, (_low, _high) in _SLOPES.items():
    _register(_name, _low, _high)


@model("leaky_relu_backward", "elu_backward")
def slopes(at: At, grad: Span, *more: Any, **named: Any) -> Span:
    numbers = [abs(float(m)) for m in (*more, *named.values()) if isinstance(m, (int, float))]
    top = max([1.0, *numbers])
    return _times(at, grad, 0.0, top * top)


@model("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(at: At, grad: Span, output: Span, dim: int, *_: Any) -> Span:
    total = grad.mag.sum(dim, keepdim=True) if grad.lo.dim() else grad.mag
    if "log" in at.name:
        return _within(grad.mag + total, at.dtype)
    at.check_sum(total)
    return _within(grad.mag + total.expand(grad.shape), at.dtype)


@model("nll_loss_backward", "nll_loss2d_backward", inf=True)
def nll_backward(
    at: At, grad: Span, x: Span, target: Span, weight: Span | None, reduction: int, *_: Any
) -> Span:
    top = grad.mag.max() * (float(weight.mag.max()) if weight is not None else 1.0)
    return Span((-top).expand(x.shape) * 1.001, top.expand(x.shape) * 1.001, at.dtype)


@model("mse_loss_backward", "l1_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def distance_backward(at: At, grad: Span, x: Span, y: Span, reduction: int, *more: Any) -> Span:
    gap = torch.maximum((x.hi - y.lo).abs(), (x.lo - y.hi).abs())
    n = max(1, gap.numel()) if reduction == 1 else 1
    size = (
        2 * gap / n
        if at.name.startswith("mse")
        else torch.full_like(gap, max(1.0, *[float(m) for m in more] or [1.0]) / n)
    )
    return _within(size * grad.mag, at.dtype)


@model("binary_cross_entropy_backward")
def bce_backward(
    at: At, grad: Span, x: Span, y: Span, weight: Span | None = None, reduction: int = 1
) -> Span:
    """The kernel keeps its denominator at 1e-12 or more."""
    gap = torch.maximum((x.hi - y.lo).abs(), (x.lo - y.hi).abs())
    floor = torch.minimum(x.lo * (1 - x.lo), x.hi * (1 - x.hi)).clamp(min=1e-12)
    n = max(1, gap.numel()) if reduction == 1 else 1
    return _within(grad.mag * gap / floor / n * (weight.mag if weight else 1.0), at.dtype)


def _norm_backward(
    at: At, grad: Span, unit: Tensor, inverse: Tensor, dims: tuple[int, ...], weight: Tensor | None
) -> Span:
    g = grad.mag if weight is None else grad.mag * weight
    middle = g.mean(dims, keepdim=True)
    at.check_sum(g.sum(dims, keepdim=True) * unit)
    # What is taken off is a projection: it never makes the gradient of a row longer.
    longest = (g * g).sum(dims, keepdim=True).sqrt() * (1 + unit * 1e-4)
    return _within(
        inverse * torch.minimum(longest.expand(g.shape), g + middle + unit * unit * middle),
        at.dtype,
    )


@model("native_layer_norm_backward")
def layer_norm_backward(at: At, grad: Span, x: Span, shape: Any, mean: Span, rstd: Span, weight: Span | None,
                        bias: Span | None, mask: Any) -> tuple[Span | None, ...]:  # fmt: skip
    lead = x.lo.dim() - len(shape)
    dims = tuple(range(lead, x.lo.dim()))
    unit = torch.tensor(math.sqrt(math.prod(shape)) * 1.01, dtype=torch.float64)
    gx = _norm_backward(at, grad, unit, rstd.mag, dims, weight.mag if weight is not None else None)
    rows = grad.mag.reshape(-1, *shape).sum(0)
    return (
        gx,
        (_within(rows * unit, at.dtype) if mask[1] else None),
        (_within(rows, at.dtype) if mask[2] else None),
    )


@model("native_batch_norm_backward", "batch_norm_backward")
def batch_norm_backward(at: At, grad: Span, x: Span, weight: Span | None, mean: Any, var: Any, save_mean: Any,
                        save_inv: Any, train: bool, eps: float, mask: Any, *_: Any) -> tuple[Span | None, ...]:  # fmt: skip
    dims = tuple(d for d in range(x.lo.dim()) if d != 1)
    shape = (1, -1) + (1,) * (x.lo.dim() - 2)
    n = math.prod(x.shape[d] for d in dims)
    unit = torch.tensor(math.sqrt(n) * 1.01, dtype=torch.float64)
    if train and isinstance(save_inv, Span) and save_inv.lo.numel():
        inverse = save_inv.mag.view(shape)
    else:
        floor = (var.lo.view(shape) if isinstance(var, Span) else 0.0) + eps
        inverse = torch.as_tensor(floor, dtype=torch.float64).clamp(min=1e-30).rsqrt()
        top = torch.maximum((x.hi - mean.lo.view(shape)).abs(), (x.lo - mean.hi.view(shape)).abs())
        unit = (top * inverse).max()
    w = weight.mag.view(shape) if weight is not None else None
    gx = _norm_backward(at, grad, unit, inverse, dims, w) if mask[0] else None
    rows = grad.mag.sum(dims)
    return (
        gx,
        (_within(rows * unit, at.dtype) if mask[1] else None),
        (_within(rows, at.dtype) if mask[2] else None),
    )


@model("native_group_norm_backward")
def group_norm_backward(at: At, grad: Span, x: Span, mean: Span, rstd: Span, weight: Span | None, n: int, c: int,
                        hw: int, group: int, mask: Any) -> tuple[Span | None, ...]:  # fmt: skip
    w = weight.mag.view((1, c) + (1,) * (x.lo.dim() - 2)) if weight is not None else 1.0
    g = (grad.mag * w).reshape(n, group, -1)
    unit = torch.tensor(math.sqrt(c // group * hw) * 1.01, dtype=torch.float64)
    made = _norm_backward(
        at, Span(-g, g, at.dtype), unit, rstd.mag.reshape(n, group, 1), (2,), None
    )
    rows = grad.mag.reshape(n, c, -1).sum((0, 2))
    return (
        made.mapped(lambda t: t.reshape(x.shape)),
        _within(rows * unit, at.dtype),
        _within(rows, at.dtype),
    )


@model("native_dropout_backward")
def dropout_backward(at: At, grad: Span, mask: Span, scale: float) -> Span:
    return _times(at, grad, 0.0, float(scale))


@model("_adaptive_avg_pool2d_backward", "avg_pool2d_backward", "upsample_nearest2d_backward",
       "upsample_bilinear2d_backward", "upsample_nearest1d_backward")  # fmt: skip
def pool_backward(at: At, grad: Span, *_: Any, **__: Any) -> Span:
    shape = next(refs_in(at.call.results)).shape
    top = grad.mag.sum()
    return Span((-top).expand(shape), top.expand(shape), at.dtype)

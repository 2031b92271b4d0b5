"""Models of bilinear operators: matrix products, convolutions, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .arithmetic import add, scaled
from .call import At, NotModeled, model
from .rounding import eps_of
from .shadow import Span

__all__ = ["bilinear", "linear_map"]

Product = Callable[[Tensor, Tensor], Tensor]


def bilinear(at: At, f: Product, x: Span, y: Span, num_terms: int) -> Span:
    """The range of f(x, y), a sum of `num_terms` products for each element."""
    made: tuple[Tensor, Tensor]
    if bool((x.lo >= 0).all()) and bool((y.lo >= 0).all()):
        low, high = f(x.lo, y.lo), f(x.hi, y.hi)
        made, size = (low, high), high
    elif bool((x.lo >= 0).all()):
        made, size = _positive_times(f, x, y), f(x.hi, y.mag)
    elif bool((y.lo >= 0).all()):
        made, size = _positive_times(lambda a, b: f(b, a), y, x), f(x.mag, y.hi)
    else:
        made, size = _middle_and_radius(f, x, y)
    at.check_sum(size)
    error = size * (eps_of(at.dtype) * max(1, num_terms))
    low, high = made[0] - error, made[1] + error
    if bool((made[0] >= 0).all()) and bool((x.lo >= 0).all()) and bool((y.lo >= 0).all()):
        low = low.clamp(min=0.0)
    return Span(low, high, at.dtype)


def _positive_times(f: Product, x: Span, y: Span) -> tuple[Tensor, Tensor]:
    low = f(x.hi, y.lo.clamp(max=0)) + f(x.lo, y.lo.clamp(min=0))
    high = f(x.hi, y.hi.clamp(min=0)) + f(x.lo, y.hi.clamp(max=0))
    return low, high


def _middle_and_radius(f: Product, x: Span, y: Span) -> tuple[tuple[Tensor, Tensor], Tensor]:
    xm, xr = (x.lo + x.hi) / 2, (x.hi - x.lo) / 2
    ym, yr = (y.lo + y.hi) / 2, (y.hi - y.lo) / 2
    middle = f(xm, ym)
    radius = f(xm.abs(), yr) + f(xr, ym.abs() + yr)
    size = f(xm.abs(), ym.abs()) + radius
    slack = size * 1e-14
    return (middle - radius - slack, middle + radius + slack), size


def linear_map(at: At, f: Callable[[Tensor], Tensor], x: Span, num_terms: int) -> Span:
    """A map with coefficients that are not negative: sums, averages, interpolation."""
    low, high, size = f(x.lo), f(x.hi), f(x.mag)
    error = size * (eps_of(at.dtype) * max(1, num_terms))
    at.check_sum(size)
    if bool((x.lo >= 0).all()):
        return Span((low - error).clamp(min=0.0), high + error, at.dtype)
    return Span(low - error, high + error, at.dtype)


@model("mm", "bmm", "matmul", "mv", "dot", "vdot")
def mm(at: At, x: Span, y: Span) -> Span:
    if at.variable is not None:
        raise NotModeled("a product over elements whose number changes with the data")
    return bilinear(at, torch.matmul, x, y, x.shape[-1] if x.lo.dim() else 1)


@model("outer", "ger")
def outer(at: At, x: Span, y: Span) -> Span:
    return bilinear(at, torch.outer, x, y, 1)


@model("addmm", "baddbmm", "addmv", "addbmm")
def addmm(at: At, bias: Span, x: Span, y: Span, beta: Any = 1, alpha: Any = 1) -> Span:
    if at.name == "addbmm":
        raise NotModeled("addbmm")
    made = scaled(mm(at, x, y), alpha)
    return add(at, scaled(bias, beta), made) if beta != 0 else made


@model("linear")
def linear(at: At, x: Span, w: Span, bias: Span | None = None) -> Span:
    made = mm(at, x, w.mapped(lambda t: t.t() if t.dim() == 2 else t))
    return add(at, made, bias) if bias is not None else made


@model("convolution")
def convolution(at: At, x: Span, w: Span, bias: Span | None, stride: Any, padding: Any, dilation: Any,
                transposed: bool, output_padding: Any, groups: int) -> Span:  # fmt: skip
    def f(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.aten.convolution.default(  # type: ignore[no-any-return]
            a.contiguous(), b.contiguous(), None, stride, padding, dilation, transposed,
            output_padding, groups,
        )  # fmt: skip

    num = w.lo[0].numel() if not transposed else w.lo[:, 0].numel()
    made = bilinear(at, f, x, w, num)
    if bias is None:
        return made
    shape = (1, -1) + (1,) * (made.lo.dim() - 2)
    if made.lo.dim() == x.lo.dim() == w.lo.dim() - 1:
        shape = shape[1:]
    return Span(made.lo + bias.lo.view(shape), made.hi + bias.hi.view(shape), at.dtype)


@model("convolution_backward")
def convolution_backward(at: At, grad: Span, x: Span, w: Span, bias_sizes: Any, stride: Any, padding: Any,
                         dilation: Any, transposed: bool, output_padding: Any, groups: int,
                         mask: Any) -> tuple[Span | None, ...]:  # fmt: skip
    more = (stride, padding, dilation, transposed, output_padding, groups)
    op = torch.ops.aten.convolution_backward.default

    def to_input(g: Tensor, weight: Tensor) -> Tensor:
        return op(g.contiguous(), x.lo, weight.contiguous(), None, *more, [True, False, False])[0]  # type: ignore[no-any-return]

    def to_weight(g: Tensor, value: Tensor) -> Tensor:
        return op(g.contiguous(), value.contiguous(), w.lo, None, *more, [False, True, False])[1]  # type: ignore[no-any-return]

    gx = bilinear(at, to_input, grad, w, w.lo[0].numel() * grad.shape[1]) if mask[0] else None
    gw = bilinear(at, to_weight, grad, x, grad.lo[:, 0].numel()) if mask[1] else None
    gb = None
    if mask[2]:
        dims = [d for d in range(grad.lo.dim()) if d != 1]
        gb = linear_map(at, lambda t: t.sum(dims), grad, grad.lo[:, 0].numel())
    return gx, gw, gb


@model("_scaled_dot_product_flash_attention_for_cpu", inf=True)
def attention(at: At, q: Span, k: Span, v: Span, dropout_p: float = 0.0, is_causal: bool = False,
              *, attn_mask: Span | None = None, scale: float | None = None) -> tuple[Span, Span]:  # fmt: skip
    """Each result is a weighted mean of the values."""
    for span in (q, k, v):
        if not bool(span.mag.isfinite().all()):
            raise NotModeled("attention over infinite numbers")
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    size = q.mag.amax((-1, -2)) * k.mag.amax((-1, -2)) * q.shape[-1] * abs(factor)
    at.check_sum(size * q.shape[-1])
    if attn_mask is not None:
        masked = (attn_mask.lo == -math.inf).all(-1)
        at.fail("fully_masked_row", masked, "every entry of a row of the mask is -inf", attn_mask)
        at.fail("domain_error", attn_mask.hi == math.inf, "the mask holds inf", attn_mask)
    low, high = v.lo.amin(-2, keepdim=True), v.hi.amax(-2, keepdim=True)
    slack = torch.maximum(low.abs(), high.abs()) * 1e-3
    shape = (*q.shape[:-1], v.shape[-1])
    out = Span((low - slack).expand(shape), (high + slack).expand(shape), at.dtype)
    top = size[..., None].expand(q.shape[:-1])
    n = math.log(max(1, k.shape[-2])) + 1
    return out, Span(-top - n, top + n, torch.float32)


@model("_scaled_dot_product_flash_attention_for_cpu_backward", inf=True)
def attention_backward(at: At, grad: Span, q: Span, k: Span, v: Span, out: Span, lse: Span,
                       *_: Any, scale: float | None = None, **__: Any) -> tuple[Span, ...]:  # fmt: skip
    factor = abs(scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    g = grad.mag.amax((-1, -2), keepdim=True)
    num_q, num_k, width = q.shape[-2], k.shape[-2], v.shape[-1]
    value = v.mag.amax((-1, -2), keepdim=True)
    scores = 2 * g * value * width * factor
    to_q = scores * k.mag.amax((-1, -2), keepdim=True)
    to_k = scores * q.mag.amax((-1, -2), keepdim=True) * num_q
    to_v = g * num_q
    tops = [to_q.expand(q.shape), to_k.expand(k.shape), to_v.expand(v.shape)]
    for top in tops:
        at.check_sum(top * max(num_q, num_k))
    return tuple(Span(-t * 1.001, t * 1.001, at.dtype) for t in tops)


@model("constant_pad_nd", inf=True)
def constant_pad(at: At, x: Span, pad: Any, value: float = 0.0) -> Span:
    return x.mapped(lambda t: torch.nn.functional.pad(t, list(pad), value=float(value)))


@model("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def pad(at: At, x: Span, padding: Any) -> Span:
    op = getattr(torch.ops.aten, at.name).default
    return x.mapped(lambda t: op(t, padding))


@model("avg_pool2d", "avg_pool1d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d", "upsample_nearest2d",
       "upsample_bilinear2d", "upsample_nearest1d", "upsample_linear1d", "im2col", "col2im")  # fmt: skip
def average(at: At, x: Span, *more: Any, **named: Any) -> Span:
    func = at.call.func
    if at.name in ("im2col", "upsample_nearest2d", "upsample_nearest1d"):
        return x.mapped(lambda t: func(t, *more, **named))
    return linear_map(at, lambda t: func(t.contiguous(), *more, **named), x, 64)


@model("max_pool2d_with_indices", "max_pool3d_with_indices", inf=True)
def max_pool(at: At, x: Span, *more: Any, **named: Any) -> tuple[Span, Span]:
    low, high = (at.call.func(t.contiguous(), *more, **named)[0] for t in (x.lo, x.hi))
    size = x.lo[0, 0].numel() if x.lo.dim() > 3 else x.lo[0].numel()
    return Span(low, high, at.dtype), Span(
        torch.zeros_like(low), torch.full_like(low, size - 1.0), torch.int64
    )

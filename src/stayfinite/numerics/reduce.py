"""Norms, directions, distances and spreads of whole vectors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .eps import as_float, clip, gate, saturate, widen
from .masked import masked_mean

__all__ = [
    "cosine_similarity",
    "pairwise_distance",
    "safe_norm",
    "safe_normalize",
    "safe_std",
    "safe_var",
]


def peak_of(x: Tensor, dim: int) -> Tensor:
    """The largest magnitude along `dim`, kept; never 0, so that one can divide by it."""
    if x.shape[dim] == 0 if x.ndim else False:
        return torch.ones_like(x.sum(dim, keepdim=True))
    top = torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))
    return top.clamp_min(torch.finfo(x.dtype).tiny)


class _Polar(torch.autograd.Function):
    """x -> (direction, length) along a dimension, scaled so that no square over- or underflows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, shortest: float) -> tuple[Tensor, Tensor]:
        peak = peak_of(x, dim)
        unit = x / peak
        length = torch.linalg.vector_norm(unit, 2, dim, keepdim=True)
        # A vector that is not zero has a unit length of 1 at least, unless it is all subnormal.
        return unit / length.clamp_min(torch.finfo(x.dtype).tiny), clip(length * peak)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        _, ctx.dim, ctx.shortest = inputs
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_dir: Tensor | None, grad_len: Tensor | None) -> Any:
        direction, length = ctx.saved_tensors
        grad = None
        if grad_len is not None:
            grad = grad_len * direction
        if grad_dir is not None:
            along = (direction * grad_dir).sum(ctx.dim, keepdim=True)
            slope = length.clamp_min(ctx.shortest).reciprocal()
            across = (grad_dir - direction * along) * gate(slope, length)
            grad = across if grad is None else grad + across
        return grad, None, None


class _Length(torch.autograd.Function):
    """The length alone: one pass less than `_Polar` each way."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        peak = peak_of(x, dim)
        unit = x / peak
        length = torch.linalg.vector_norm(unit, 2, dim, keepdim=True)
        inverse = length.clamp_min(torch.finfo(x.dtype).tiny).reciprocal()
        return clip(length * peak), unit, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, ctx.dim = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Any:
        x, unit, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: keep the history
            return grad * polar(x, ctx.dim)[0], None
        return unit * (grad * inverse), None


def polar(x: Tensor, dim: int, slack: float = 1.0) -> tuple[Tensor, Tensor]:
    """(direction, length) of `x` in its compute dtype.

    The derivative of the direction is 1 / length, held at a fourth of the range of x's own dtype,
    less the factor `slack` that the caller multiplies it by.
    """
    x = as_float(x)
    info = torch.finfo(x.dtype)
    shortest = max(info.tiny, 4 * slack / info.max)
    direction, length = _Polar.apply(widen(x), dim, shortest)  # type: ignore[no-untyped-call]
    return direction, length


def safe_norm(x: Tensor, dim: int = -1, *, keepdim: bool = False) -> Tensor:
    """The Euclidean norm along `dim`; gradient zero at the zero vector.

    Prevents: NaN from `x.square().sum().sqrt()` at a zero vector, inf from squares that overflow
    (256 in fp16, 1.8e19 in fp32), and 0 from squares that underflow. Accumulates in fp32 at least;
    a norm beyond the range is held at the dtype's largest number.

    >>> x = torch.zeros(3, requires_grad=True)
    >>> safe_norm(x).backward()
    >>> x.grad
    tensor([0., 0., 0.])
    """
    x = as_float(x)
    norm: Tensor = _Length.apply(widen(x), dim)[0]  # type: ignore[no-untyped-call]
    return saturate(norm if keepdim else norm.squeeze(dim), x.dtype).to(x.dtype)


def safe_normalize(x: Tensor, dim: int = -1) -> Tensor:
    """x / |x| along `dim`; the zero vector stays zero, with gradient zero.

    Prevents: 0/0 for a zero vector. `F.normalize` guards with eps=1e-12, which fp16 rounds to 0,
    and which gives a zero vector in fp32 a gradient of 1e12.

    >>> safe_normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    x = as_float(x)
    return polar(x, dim)[0].to(x.dtype)


def cosine_similarity(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """The cosine between x and y along `dim`, within [-1, 1]; 0 for a zero vector, gradient zero.

    Prevents: 0/0, overflow of the squared norms, and a cosine of 1.0000001 that `acos` turns into
    NaN.

    >>> cosine_similarity(torch.tensor([1e30, 0.0]), torch.tensor([1e30, 1e30]))
    tensor(0.7071)
    """
    x, y = as_float(x), as_float(y, "y")
    dtype = torch.promote_types(x.dtype, y.dtype)
    cosine = (polar(x, dim)[0] * polar(y, dim)[0]).sum(dim)
    return cosine.clamp(-1, 1).to(dtype)


def pairwise_distance(x: Tensor, y: Tensor | None = None) -> Tensor:
    """All Euclidean distances between the rows of x (…, N, D) and of y (…, M, D), y = x by default.

    Prevents: NaN on the diagonal's gradient (the distance of a point to itself is 0, where sqrt has
    no derivative), and NaN where `x² + y² - 2xy` cancels to a negative number.

    >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> pairwise_distance(x)
    tensor([[0., 5.],
            [5., 0.]])
    """
    x = as_float(x)
    y = x if y is None else as_float(y, "y")
    dtype = torch.promote_types(x.dtype, y.dtype)
    # A difference beyond the range makes the distance so too: both are held.
    gap = saturate(widen(x).unsqueeze(-2) - widen(y).unsqueeze(-3))
    return saturate(safe_norm(gap), dtype).to(dtype)


class _Spread(torch.autograd.Function):
    """x -> (variance or standard deviation, kept), with the derivative in closed form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, freedom: int, is_std: bool) -> tuple[Tensor, Tensor]:
        centered = _centered(x, dim)
        peak = peak_of(centered, dim)
        length = torch.linalg.vector_norm(centered / peak, 2, dim, keepdim=True)
        std = length / math.sqrt(freedom) * peak
        # The product of two factors that fit: the square of the peak alone may overflow.
        return clip(std if is_std else std * std), centered

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        x, ctx.dim, ctx.freedom, ctx.is_std = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        x, spread, centered = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: keep the history
            centered = _centered(x, ctx.dim)
        if not ctx.is_std:
            return centered * (grad * (2 / ctx.freedom)), None, None, None
        slope = centered / spread.clamp_min(torch.finfo(x.dtype).tiny)
        return slope * (grad / ctx.freedom), None, None, None


def _centered(x: Tensor, dim: int) -> Tensor:
    return clip(x - masked_mean(x, dim=dim, keepdim=True))


def _spread(x: Tensor, dim: int, correction: int, keepdim: bool, is_std: bool) -> Tensor:
    x = as_float(x)
    wide = widen(x)
    freedom = (wide.shape[dim] if wide.ndim else 1) - correction
    if freedom <= 0:
        spread = (wide * 0).sum(dim, keepdim=True)
    else:
        spread, _ = _Spread.apply(wide, dim, freedom, is_std)  # type: ignore[no-untyped-call]
    return saturate(spread if keepdim else spread.squeeze(dim), x.dtype).to(x.dtype)


def safe_var(x: Tensor, dim: int = -1, *, correction: int = 1, keepdim: bool = False) -> Tensor:
    """The variance along `dim`; 0 with gradient zero where there are too few elements for one.

    Prevents: NaN for a sample variance over one element (n - 1 = 0) and over none, and overflow of
    the squares. Accumulates in fp32 at least; a variance beyond the range is held at its edge.

    >>> safe_var(torch.ones(4, 1))
    tensor([0., 0., 0., 0.])
    """
    return _spread(x, dim, correction, keepdim, is_std=False)


def safe_std(x: Tensor, dim: int = -1, *, correction: int = 1, keepdim: bool = False) -> Tensor:
    """The standard deviation along `dim`; 0 with gradient zero for too few or all equal elements.

    Prevents: NaN over one element, and the infinite derivative of the square root where all
    elements are equal (a dead feature, a constant batch).

    >>> x = torch.ones(3, requires_grad=True)
    >>> safe_std(x).backward()
    >>> x.grad
    tensor([0., 0., 0.])
    """
    return _spread(x, dim, correction, keepdim, is_std=True)

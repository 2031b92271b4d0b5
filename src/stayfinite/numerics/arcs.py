"""Inverse trigonometric and hyperbolic functions at and beyond the edge of their domain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .eps import as_float, gate, run

__all__ = ["safe_acos", "safe_asin", "safe_atanh"]


class _Arc(torch.autograd.Function):
    """acos or asin: the same derivative up to its sign."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, is_acos: bool) -> Tensor:
        x = x.clamp(-1, 1)
        return x.acos() if is_acos else x.asin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.is_acos = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        room = _room(x)
        slope = room.clamp_min(torch.finfo(x.dtype).tiny).rsqrt()
        grad = gate(grad, room) * slope
        return -grad if ctx.is_acos else grad, None


def _room(x: Tensor) -> Tensor:
    """1 - x² without cancellation near ±1; not positive from there on."""
    return (1 - x) * (1 + x)


def safe_acos(x: Tensor) -> Tensor:
    """acos(x); beyond [-1, 1] the value at the edge, gradient zero from the edge on.

    Prevents: NaN for a cosine that rounding made 1.0000001, and the infinite derivative at ±1.

    >>> safe_acos(torch.tensor([1.0000001, 0.0]))
    tensor([0.0000, 1.5708])
    """
    return run(_Arc, as_float(x), True)


def safe_asin(x: Tensor) -> Tensor:
    """asin(x); beyond [-1, 1] the value at the edge, gradient zero from the edge on.

    Prevents: NaN for a sine that rounding made 1.0000001, and the infinite derivative at ±1.

    >>> safe_asin(torch.tensor([2.0, 0.0]))
    tensor([1.5708, 0.0000])
    """
    return run(_Arc, as_float(x), False)


class _Atanh(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        edge = 1 - torch.finfo(x.dtype).eps / 2
        return x.clamp(-edge, edge).atanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        room = _room(x)
        return gate(grad, room) / room.clamp_min(torch.finfo(x.dtype).tiny)


def safe_atanh(x: Tensor) -> Tensor:
    """atanh(x); from ±1 on, the value at the dtype's last number before ±1, gradient zero.

    Prevents: inf at ±1 (a saturated tanh that is inverted, as in squashed Gaussian policies) and
    NaN beyond.

    >>> safe_atanh(torch.tensor([1.0, 0.0]))
    tensor([8.6643, 0.0000])
    """
    return run(_Atanh, as_float(x))

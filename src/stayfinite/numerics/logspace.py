"""Logarithms of sums and differences of exponentials."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .eps import as_float, broadcast, clip, gate, log_least, run, saturate, widen
from .masked import masked_logsumexp, open_rows

__all__ = ["log1mexp", "log_mixture", "safe_logaddexp"]


class _Log1mExp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        # log(-expm1) is exact near 0, log1p(-exp) far from it; the switch at -ln 2 is Maechler's.
        neg = x.clamp_max(0)
        near = neg.expm1().neg_().log_()
        far = neg.exp().neg_().log1p_()
        # One of the two gates is open, also at the switch itself; `where` is much slower.
        is_near = neg + math.log(2)
        is_far = torch.finfo(x.dtype).tiny - is_near
        return (gate(near, is_near) + gate(far, is_far)).clamp_min(log_least(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        distance = -x
        # The bound is on the result: compiled kernels round expm1 of a tiny number to 0.
        gap = distance.expm1().clamp_min(torch.finfo(x.dtype).tiny)
        return gate(grad, distance) / -gap


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0; from 0 on, the log of the smallest positive number, gradient zero.

    Prevents: `log(1 - exp(x)) = -inf` for every x above -6e-8 in fp32 (above -5e-4 in fp16), where
    `1 - exp(x)` cancels to 0, and the lost digits before that.

    >>> log1mexp(torch.tensor([-1e-10, -1.0, -100.0]))
    tensor([-2.3026e+01, -4.5868e-01, -3.9236e-44])
    """
    return run(_Log1mExp, as_float(x))


class _LogAddExp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        lowest = torch.finfo(a.dtype).min
        return clip(torch.logaddexp(a.clamp_min(lowest), b.clamp_min(lowest)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        lowest = torch.finfo(a.dtype).min
        a, b = a.clamp_min(lowest), b.clamp_min(lowest)
        # From the difference: the result has lost it where both are large.
        grad = gate(grad, torch.maximum(a, b) - lowest)
        gap = a - b
        return grad * gap.sigmoid(), grad * (-gap).sigmoid()


def safe_logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)); where both are -inf (no mass at all) the dtype's lowest number.

    Prevents: inf from `log(exp(a) + exp(b))`, and the NaN gradient of two -inf entries, which
    carry no gradient here. A single -inf is a mask and leaves the other.

    >>> inf = float("inf")
    >>> safe_logaddexp(torch.tensor([0.0, -inf]), torch.tensor([0.0, -inf]))
    tensor([ 6.9315e-01, -3.4028e+38])
    """
    a, b = broadcast(as_float(a, "a"), as_float(b, "b"))
    dtype = torch.promote_types(a.dtype, b.dtype)
    return run(_LogAddExp, a.to(dtype), b.to(dtype))


def log_mixture(logits: Tensor, log_probs: Tensor, dim: int = -1) -> Tensor:
    """The log-density of a mixture: weights softmax(logits), components exp(log_probs), along dim.

    Prevents: `log((softmax(logits) * log_probs.exp()).sum())`, which is -inf as soon as every
    component underflows (a density below 1e-38 is ordinary in a dozen dimensions). A component
    at -inf is left out; where all are, the result is the dtype's lowest number, gradient zero.
    Half precision is computed in fp32.

    >>> log_mixture(torch.zeros(2), torch.tensor([-500.0, -500.0]))
    tensor(-500.)
    """
    dtype = torch.promote_types(as_float(logits).dtype, as_float(log_probs).dtype)
    weights = F.log_softmax(open_rows(widen(logits), None, dim)[0], dim)
    joint = weights + widen(log_probs, "log_probs")
    return saturate(masked_logsumexp(joint, dim=dim), dtype).to(dtype)

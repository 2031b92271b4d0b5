"""Losses on latents and on predicted distributions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ..eps import as_float, broadcast, clip, hold, run, widen
from ..masked import masked_mean, reduce_loss
from ..ops import bound, exp_limit
from ..reduce import polar

__all__ = ["gaussian_kl", "gaussian_nll", "normalized_mse"]

LOG_VAR_BOUNDS = (-20.0, 20.0)


class _WeightedSquare(torch.autograd.Function):
    """error² / exp(log_var), with both derivatives held below `top`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(error: Tensor, log_var: Tensor, top: float) -> tuple[Tensor, Tensor, Tensor]:
        inverse = (-0.5 * log_var).exp_()
        z = clip(error * inverse)
        return z.square().clamp_max(torch.finfo(z.dtype).max), z, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        error, log_var, ctx.top = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(error, log_var, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Any:
        error, log_var, z, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: keep the history
            inverse = (-0.5 * log_var).exp()
            z = clip(error * inverse)
        by_error = grad * (2 * z * inverse).clamp(-ctx.top, ctx.top)
        by_log_var = grad * -z.square().clamp_max(ctx.top)
        return by_error, by_log_var, None


class _ClampThrough(torch.autograd.Function):
    """clamp with the gradient of the identity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


def _limits(log_var: Tensor, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low < high:
        raise UsageError(f"`log_var_bounds` must be (low, high) with low < high, got {bounds}")
    # exp(log_var) is also the derivative, which has to fit into the dtype of the input.
    return low, min(high, exp_limit(as_float(log_var, "log_var").dtype))


def normalized_mse(
    prediction: Tensor, target: Tensor, *, dim: int = -1, mask: Tensor | None = None
) -> Tensor:
    """Mean squared error of vectors that are scaled to unit root mean square along `dim` first.

    Prevents: the loss that grows with the square of the latents' scale until it overflows (fp16 at
    256). The result is 2 - 2 cos(prediction, target), so within 0 and 4 (1 for a zero vector,
    which gets no gradient). `mask` (the shape without `dim`) is True for the vectors that count;
    without a single one the loss is 0, gradient zero. Half precision is returned in fp32.

    >>> normalized_mse(torch.tensor([[1e30, 0.0]]), torch.tensor([[1.0, 0.0]]))
    tensor(0.)
    """
    gap = polar(prediction, dim, 2.0)[0] - polar(target, dim, 2.0)[0]
    return masked_mean(gap.square().sum(dim), mask)


def gaussian_nll(
    mean: Tensor,
    target: Tensor,
    log_var: Tensor,
    *,
    full: bool = False,
    log_var_bounds: tuple[float, float] = LOG_VAR_BOUNDS,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of `target` under a Gaussian with that mean and log-variance.

    Prevents: `(target - mean)² / exp(log_var)` with a log-variance that ran away: exp overflows at
    88, and a variance of 0 divides by zero. The log-variance is bounded (see `bound`: it can come
    back; for fp16 the upper bound is 11), a squared error beyond the range is held, and so are the
    derivatives. `full` adds the constant log(2π)/2. Half precision is computed and returned in
    fp32.

    >>> gaussian_nll(torch.zeros(1), torch.ones(1), torch.tensor([-1000.0])).isfinite()
    tensor(True)
    """
    lv = bound(widen(log_var, "log_var"), *_limits(log_var, log_var_bounds))
    error, lv = broadcast(widen(target, "target") - widen(mean, "mean"), lv)
    narrow = min((mean.dtype, target.dtype, log_var.dtype), key=lambda d: torch.finfo(d).max)
    top = torch.finfo(narrow).max
    square: Tensor = _WeightedSquare.apply(error, lv, top)[0]  # type: ignore[no-untyped-call]
    loss = 0.5 * (lv + square)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduce_loss(loss, reduction)


def gaussian_kl(
    mean: Tensor,
    log_var: Tensor,
    *,
    log_var_bounds: tuple[float, float] = LOG_VAR_BOUNDS,
    reduction: str = "mean",
) -> Tensor:
    """KL divergence of N(mean, exp(log_var)) from N(0, 1), the term of a VAE, elementwise.

    Prevents: `exp(log_var)` of an encoder that ran away (inf from 88 on, from 11 in fp16). The
    log-variance is bounded, and can come back (see `bound`); for fp16 the upper bound is 11. Half
    precision is computed and returned in fp32.

    >>> gaussian_kl(torch.zeros(2), torch.tensor([0.0, 1000.0])).isfinite()
    tensor(True)
    """
    # The gradient by the log-variance always leads inside here, so it may simply pass.
    lv = run(_ClampThrough, widen(log_var, "log_var"), *_limits(log_var, log_var_bounds))
    m = widen(mean, "mean")
    half_square = hold(m, torch.finfo(m.dtype).max ** 0.5 * (1 - 2**-20)).square() * 0.5
    # expm1 keeps the digits near log_var = 0, where exp(lv) - 1 - lv cancels.
    return reduce_loss(half_square + 0.5 * (lv.expm1() - lv), reduction)

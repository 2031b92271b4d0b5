"""Losses on latents and on predicted distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..eps import hold, saturate, widen
from ..masked import masked_mean, reduce_loss
from ..ops import bound
from ..reduce import safe_normalize

__all__ = ["gaussian_kl", "gaussian_nll", "normalized_mse"]

LOG_VAR_BOUNDS = (-20.0, 20.0)


def _square(x: Tensor) -> Tensor:
    """x², held within the range; gradient zero where it is held."""
    edge = math.sqrt(torch.finfo(x.dtype).max) * (1 - torch.finfo(x.dtype).eps)
    return hold(x, edge).square()


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
    gap = safe_normalize(widen(prediction), dim) - safe_normalize(widen(target, "target"), dim)
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
    back), and a squared error beyond the range is held. `full` adds the constant log(2π)/2.
    Half precision is computed and returned in fp32.

    >>> gaussian_nll(torch.zeros(1), torch.ones(1), torch.tensor([-1000.0])).isfinite()
    tensor(True)
    """
    lv = bound(widen(log_var, "log_var"), *log_var_bounds)
    error = saturate(widen(target, "target") - widen(mean, "mean"))
    loss = 0.5 * (lv + _square(saturate(error * (-0.5 * lv).exp())))
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
    log-variance is bounded, and can come back (see `bound`). Half precision is computed and
    returned in fp32.

    >>> gaussian_kl(torch.zeros(2), torch.tensor([0.0, 1000.0])).isfinite()
    tensor(True)
    """
    lv = bound(widen(log_var, "log_var"), *log_var_bounds)
    # expm1 keeps the digits near log_var = 0, where exp(lv) - 1 - lv cancels.
    return reduce_loss(0.5 * (_square(widen(mean, "mean")) + (lv.expm1() - lv)), reduction)

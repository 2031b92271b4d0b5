"""Layers that stay finite: normalizations, Sinkhorn, temperature."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UsageError
from .eps import compute_dtype, hold, saturate, widen
from .reduce import peak_of

__all__ = [
    "BoundedTemperature",
    "LogSinkhorn",
    "RMSNorm",
    "SafeBatchNorm1d",
    "SafeBatchNorm2d",
    "SafeBatchNorm3d",
    "log_sinkhorn",
]


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, accumulated in fp32 at least.

    Prevents: the mean of squares that overflows (x above 256 in fp16, 1.8e19 in fp32), and an
    epsilon so small that it is none: with `eps=1e-20` a zero row has a derivative of 1e10, which is
    inf in fp16. `eps` is raised to the least that the input's dtype can bear.

    >>> RMSNorm(4)(torch.tensor([1e30, 1e30, 1e30, 1e30]))
    tensor([1., 1., 1., 1.], grad_fn=<MulBackward0>)
    """

    def __init__(self, dim: int, eps: float = 1e-6, *, is_affine: bool = True) -> None:
        super().__init__()
        if not eps >= 0 or not math.isfinite(eps):
            raise UsageError(f"`eps` must be a finite number of at least 0, got {eps!r}")
        self.dim = dim
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if is_affine else None

    def effective_eps(self, dtype: torch.dtype) -> float:
        """The epsilon used for inputs of `dtype`: the derivative at zero fits into the dtype.

        >>> RMSNorm(4, eps=1e-20).effective_eps(torch.float16) > 1e-10
        True
        """
        wide = torch.finfo(compute_dtype(dtype))
        top = torch.finfo(dtype).max
        # eps^-1/2 is the derivative at zero; its cube occurs in the backward of rsqrt.
        return float(max(self.eps, 4 / top / top, 4 * wide.max ** (-2 / 3)))

    def forward(self, x: Tensor) -> Tensor:
        """`x` normalized; same shape and dtype."""
        wide = widen(x)
        eps = self.effective_eps(x.dtype)
        if x.dtype == torch.float16:  # the squares of all fp16 numbers fit into fp32
            y = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        else:
            # Rows below 1 are left as they are, so that eps means the same as in the textbook.
            # The peak has no gradient: it cancels out.
            peak = peak_of(wide.detach(), -1).clamp_min(1)
            unit = wide / peak
            y = unit * (unit.square().mean(-1, keepdim=True) + eps / peak / peak).rsqrt()
        if self.weight is not None:
            y = y * self.weight.to(y.dtype)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.dim}, eps={self.eps}, is_affine={self.weight is not None}"


def log_sinkhorn(logits: Tensor, num_iterations: int = 20) -> Tensor:
    """The log of the doubly stochastic matrix of exp(logits) (…, N, N), by Sinkhorn in log space.

    Prevents: `exp(logits)` overflowing before the first normalization (from 88 on, 11 in fp16), and
    0/0 for a row that underflowed. Any finite magnitude is fine; -inf counts as the lowest number.
    Half precision is computed and returned in fp32.

    >>> log_sinkhorn(torch.tensor([[1e6, 0.0], [0.0, 1e6]])).exp()
    tensor([[1., 0.],
            [0., 1.]])
    """
    if num_iterations < 1:
        raise UsageError(f"`num_iterations` must be at least 1, got {num_iterations}")
    x = widen(logits, "logits")
    # A small part of the range: each normalization may add the spread of the entries once more.
    x = hold(x, torch.finfo(x.dtype).max / 64)
    for _ in range(num_iterations):
        x = F.log_softmax(F.log_softmax(x, -1), -2)
    return x


class LogSinkhorn(nn.Module):
    """A layer that turns logits (…, N, N) into a doubly stochastic matrix; see `log_sinkhorn`.

    Prevents: the overflow of `exp(H)` in the routing of hyper-connections and of soft permutations.

    >>> LogSinkhorn()(torch.full((2, 2), 1e4))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """

    def __init__(self, num_iterations: int = 20) -> None:
        super().__init__()
        if num_iterations < 1:
            raise UsageError(f"`num_iterations` must be at least 1, got {num_iterations}")
        self.num_iterations = num_iterations

    def forward(self, logits: Tensor) -> Tensor:
        """The matrix, in the dtype of `logits`."""
        return log_sinkhorn(logits, self.num_iterations).exp().to(logits.dtype)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"num_iterations={self.num_iterations}"


class BoundedTemperature(nn.Module):
    """logits / temperature, with a temperature that is learned and never falls to its floor.

    Prevents: a learned temperature (or its log, as `exp(logit_scale)`) that runs to 0 and the
    logits to inf. It is `floor + softplus(raw)`: smooth, so it can always come back. Common floors
    are 0.04 for a teacher, 0.05 for a student.

    >>> round(BoundedTemperature(0.1, floor=0.05).value().item(), 6)
    0.1
    """

    def __init__(
        self, initial: float = 0.1, *, floor: float = 0.05, is_learned: bool = True
    ) -> None:
        super().__init__()
        if not 0 < floor < initial or not math.isfinite(initial):
            raise UsageError(
                f"`initial` must be finite and above `floor`, and that above 0, "
                f"got initial={initial!r} and floor={floor!r}"
            )
        self.floor = floor
        gap = initial - floor
        raw = torch.tensor(gap + math.log(-math.expm1(-gap)))
        if is_learned:
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw)

    def value(self) -> Tensor:
        """The temperature now."""
        return self.floor + F.softplus(widen(self.raw))

    def forward(self, logits: Tensor) -> Tensor:
        """`logits` divided by the temperature, held within the range of their dtype."""
        x = widen(logits, "logits")
        # Twice by the floor: once for the quotient, once for its derivative by the temperature.
        x = hold(x, torch.finfo(x.dtype).max * min(self.floor, 1.0) ** 2) / self.value()
        return x if x.dtype == logits.dtype else saturate(x, logits.dtype).to(logits.dtype)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"floor={self.floor}"


class _SafeBatchNorm(nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        """`input` normalized; see the class."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        if not self.training:
            return super().forward(input)
        x = input
        if _is_wide(x):
            # The second term is 0, or NaN for an inf: that must show, not be held.
            x = hold(x, torch.finfo(x.dtype).max ** 0.5 / 16) + x.detach() * 0
        if x.numel() <= x.shape[1]:
            return self._without_batch(x)
        mean, var = self.running_mean, self.running_var
        if mean is None or var is None:
            return super().forward(x)
        # The kernel writes into copies: it keeps what it wrote to for the backward.
        new_mean, new_var = mean.clone(), var.clone()
        y = F.batch_norm(
            x, new_mean, new_var, self.weight, self.bias, True, self._next_momentum(), self.eps
        )
        # Both or neither: a mean without its variance is no statistic.
        is_good = new_mean.isfinite() & new_var.isfinite()
        mean.copy_(torch.where(is_good, new_mean, mean))
        var.copy_(torch.where(is_good, new_var, var))
        return y

    def _next_momentum(self) -> float:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return self.momentum
        return 1.0 / float(self.num_batches_tracked or 1)

    def _without_batch(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if mean is None or var is None:
            # One value is its own mean: what is left is the bias.
            mean, var = torch.zeros_like(x[0]).flatten(), torch.ones_like(x[0]).flatten()
            x = x * 0
        return F.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.eps)


def _is_wide(x: Tensor) -> bool:
    """Whether the squares of the dtype's numbers can overflow the accumulator."""
    return x.dtype != torch.float16


class SafeBatchNorm1d(_SafeBatchNorm):
    """`nn.BatchNorm1d` that takes a batch of one, and whose statistics cannot be poisoned.

    Prevents: the error of a last batch with one sample (normalized with the running statistics
    here, which stay as they are), and a single bad batch that turns running_mean and running_var
    into NaN for ever: a statistic that is not finite is not taken over. The bad batch itself
    still shows in the output.

    >>> SafeBatchNorm1d(3)(torch.ones(1, 3)).shape
    torch.Size([1, 3])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        _check_ndim(input, (2, 3))


class SafeBatchNorm2d(_SafeBatchNorm):
    """`nn.BatchNorm2d` that takes a single pixel, and whose statistics cannot be poisoned.

    Prevents: what `SafeBatchNorm1d` prevents, for images.

    >>> SafeBatchNorm2d(3)(torch.ones(1, 3, 1, 1)).shape
    torch.Size([1, 3, 1, 1])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        _check_ndim(input, (4,))


class SafeBatchNorm3d(_SafeBatchNorm):
    """`nn.BatchNorm3d` that takes a single voxel, and whose statistics cannot be poisoned.

    Prevents: what `SafeBatchNorm1d` prevents, for volumes.

    >>> SafeBatchNorm3d(3)(torch.ones(1, 3, 1, 1, 1)).shape
    torch.Size([1, 3, 1, 1, 1])
    """

    def _check_input_dim(self, input: Tensor) -> None:
        _check_ndim(input, (5,))


def _check_ndim(x: Any, valid: tuple[int, ...]) -> None:
    if x.ndim not in valid:
        expected = " or ".join(map(str, valid))
        raise UsageError(f"expected an input with {expected} dimensions, got {tuple(x.shape)}")

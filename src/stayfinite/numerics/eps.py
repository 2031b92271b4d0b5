"""What a float dtype can hold, and the epsilon that it does not round away."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UsageError

__all__ = ["eps_for"]

# The largest x of each dtype for which exp(x) still fits; tests/numerics compare with mpmath.
EXP_LIMIT = {
    torch.float16: 11.0859375,
    torch.bfloat16: 88.5,
    torch.float32: 88.72283172607422,
    torch.float64: 709.782712893384,
}


def eps_for(
    dtype: torch.dtype | Tensor, want: float = 1e-8, *, relative_to: float | None = None
) -> float:
    """The epsilon to use in `dtype`: `want` if the dtype can hold it, else the least that works.

    Prevents: `1e-8` in half precision. fp16 rounds it to 0, and `log(x + 0)`, `x / (y + 0)` are
    what they were without it. The result is a normal number (no hardware flushes it to zero) and
    its reciprocal is finite. With `relative_to=v` it is also large enough that `v + eps` differs
    from `v`: adding 1e-8 to 1.0 does nothing in fp32 either.

    >>> eps_for(torch.float32)
    1e-08
    >>> eps_for(torch.float16)
    6.103515625e-05
    >>> eps_for(torch.float16, relative_to=1.0)
    0.0009765625
    """
    kind = dtype.dtype if isinstance(dtype, Tensor) else dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise UsageError(f"`dtype` must be a floating point dtype, got {kind!r}")
    if not want > 0 or not math.isfinite(want):
        raise UsageError(f"`want` must be a finite number above 0, got {want!r}")
    info = torch.finfo(kind)
    least = max(want, info.tiny)
    if relative_to is not None:
        least = max(least, abs(relative_to) * info.eps)
    if least > info.max:
        raise UsageError(f"`want` must fit {kind}, whose largest number is {info.max}, got {want}")
    return float(least)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where to accumulate: half precision and below go to fp32, the others stay."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def as_float(x: Tensor, name: str = "x") -> Tensor:
    """`x` itself, or an integer or bool tensor in the default dtype; complex is rejected."""
    if x.is_floating_point():
        return x
    if x.is_complex():
        raise UsageError(
            f"`{name}` must be real, got {x.dtype}; pass x.abs() or torch.view_as_real(x)"
        )
    return x.to(torch.get_default_dtype())


def widen(x: Tensor, name: str = "x") -> Tensor:
    """`x` in the dtype that losses and reductions are computed in."""
    x = as_float(x, name)
    return x.to(compute_dtype(x.dtype))


def log_least(dtype: torch.dtype) -> float:
    """The logarithm of the smallest positive number of `dtype`."""
    info = torch.finfo(dtype)
    return math.log(info.tiny) + math.log(info.eps)


def hold(x: Tensor, limit: float) -> Tensor:
    """clamp(x, -limit, limit), gradient zero from the limit on; NaN stays.

    Not `clamp`: the backward of that is a `where`, twenty times as slow on a CPU.
    """
    return F.hardtanh(x, -limit, limit)


def saturate(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`x` held within the range of `dtype`; a held entry is a constant, so its gradient is zero."""
    return hold(x, torch.finfo(dtype or x.dtype).max)


def clip(x: Tensor) -> Tensor:
    """`saturate` for the inside of a Function, where there is no graph to keep slim."""
    top = torch.finfo(x.dtype).max
    return x.clamp(-top, top)


def gate(x: Tensor, t: Tensor) -> Tensor:
    """`x` where `t` is above 0 (or NaN), else exactly 0 and no gradient, whatever x holds there.

    The backward of relu does this in one vectorized pass; `where` and `masked_fill` cost thirty
    times as much on a CPU, and a product with a 0/1 mask leaks (0 * inf is NaN).
    """
    return cast(Tensor, torch.ops.aten.threshold_backward(x, t.to(x.dtype), 0))


def broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the shape that they broadcast to."""
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return a.expand(shape), b.expand(shape)


def choice(name: str, value: str, valid: tuple[str, ...]) -> None:
    """Reject a bad choice, with all the valid ones."""
    if value not in valid:
        raise UsageError(f"`{name}` must be one of {', '.join(valid)}, got {value!r}")


def run(function: Any, *args: Any) -> Tensor:
    """`function.apply`, typed: torch declares it without annotations."""
    return cast(Tensor, function.apply(*args))

"""Elementwise operations whose value and derivative stay finite for every finite input.

One rule for all of them. Inside the domain: the textbook value and the textbook derivative, each
held within the dtype's range. At a pole or outside the domain: a stated value, and derivative zero.
NaN goes in, NaN comes out: nothing is hidden.

The derivative is held, not the product with the incoming gradient: an overflow that a loss scale
causes stays visible to the GradScaler, which has to see it in order to lower the scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from .eps import EXP_LIMIT, as_float, broadcast, clip, gate, log_least, run

__all__ = [
    "bound",
    "p_log_p",
    "safe_div",
    "safe_exp",
    "safe_log",
    "safe_pow",
    "safe_sqrt",
]


class _Log(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, steepest: float) -> Tensor:
        # The bound is on the result: hardware may flush a subnormal bound on x to 0.
        return x.clamp_min(0).log_().clamp_min(log_least(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.steepest = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gate(grad, x) / x.clamp_min(ctx.steepest), None


def safe_log(x: Tensor) -> Tensor:
    """log(x); zero and below count as the smallest positive number of the dtype, gradient zero.

    Prevents: `log(0) = -inf` for a probability that underflowed, and the NaN gradient of
    `where(x > 0, log(x), 0)`. The derivative 1/x is held at 1/tiny for subnormal x.

    >>> safe_log(torch.tensor([0.0, 1.0]))
    tensor([-103.2789,    0.0000])
    """
    return log_of(as_float(x), x.dtype)


def log_of(x: Tensor, source: torch.dtype) -> Tensor:
    """`safe_log` of numbers that were widened from `source`, whose range the derivative has."""
    dtype = source if source.is_floating_point else x.dtype
    return run(_Log, x, torch.finfo(dtype).tiny)


class _Sqrt(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return gate(x.sqrt(), x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # the second derivative must not see the pole either
            return gate(grad, y) / (y + y).clamp_min(torch.finfo(y.dtype).tiny)
        return gate(grad / (y + y), y)


def safe_sqrt(x: Tensor) -> Tensor:
    """sqrt(x); zero and below give 0 with gradient zero.

    Prevents: the infinite derivative of sqrt at exact zeros (NaN after 0 * inf), and NaN for a
    variance that rounding made slightly negative. `sqrt(x + 1e-8)` is no remedy in fp16: there
    1e-8 is 0.

    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> safe_sqrt(x).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.2500])
    """
    return run(_Sqrt, as_float(x))


class _Exp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp_max(exp_limit(x.dtype)).exp_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        # The first number of the dtype beyond the limit, so that the limit itself has its gradient.
        beyond = exp_limit(x.dtype) * (1 + torch.finfo(x.dtype).eps)
        return gate(grad, beyond - x) * y


def safe_exp(x: Tensor) -> Tensor:
    """exp(x), held at the largest power of e that the dtype can hold; the gradient there is zero.

    Prevents: overflow to inf (x > 88.7 in fp32 and bf16, x > 11.09 in fp16), and inf * 0 later on.

    >>> safe_exp(torch.tensor([1.0, 1000.0])).isfinite().all()
    tensor(True)
    """
    return run(_Exp, as_float(x))


def exp_limit(dtype: torch.dtype) -> float:
    """The largest argument of exp that does not overflow `dtype`."""
    limit = EXP_LIMIT.get(dtype)
    if limit is None:
        raise UsageError(f"exp is not available in {dtype}; use {', '.join(map(str, EXP_LIMIT))}")
    return limit


class _Div(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(n: Tensor, d: Tensor) -> Tensor:
        return clip(gate(n / d, d.abs()))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        d, q = ctx.saved_tensors
        inverse = gate(clip(d.reciprocal()), d.abs())
        by_d = grad * clip(q * -inverse) if ctx.needs_input_grad[1] else None
        return grad * inverse, by_d


def safe_div(
    numerator: Tensor | float, denominator: Tensor | float, *, at_zero: float = 0.0
) -> Tensor:
    """numerator / denominator; `at_zero` where the denominator is 0, gradient zero there.

    Prevents: x/0 and 0/0 (an empty count, a zero norm, a degree of 0), `x / (y + eps)` at
    y = -eps, and the quotient's overflow, which is held at the dtype's largest number.

    >>> safe_div(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 4.0]))
    tensor([0.0000, 0.2500])
    """
    n, d = _pair(numerator, denominator, "numerator", "denominator")
    q = run(_Div, n, d)
    return q if at_zero == 0 else q.masked_fill(d == 0, at_zero)


def _pair(a: Tensor | float, b: Tensor | float, name_a: str, name_b: str) -> tuple[Tensor, Tensor]:
    """Both as tensors of one float dtype and one shape; at least one must be a tensor already."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        raise UsageError(f"`{name_a}` or `{name_b}` must be a tensor, got {a!r} and {b!r}")
    like = a if isinstance(a, Tensor) else b
    assert isinstance(like, Tensor)
    like = as_float(like)
    ta = as_float(a, name_a) if isinstance(a, Tensor) else torch.full_like(like, a)
    tb = as_float(b, name_b) if isinstance(b, Tensor) else torch.full_like(like, b)
    dtype = torch.promote_types(ta.dtype, tb.dtype)
    return broadcast(ta.to(dtype), tb.to(dtype))


class _ScalarPow(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, p: float) -> Tensor:
        return clip((x if p.is_integer() else x.clamp_min(0)).pow(p))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.p = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        p: float = ctx.p
        if p.is_integer():
            base, grad = x, grad if p >= 1 else gate(grad, x.abs())
        else:
            base, grad = x.clamp_min(0), gate(grad, x)
        # pow(0, negative) is inf: held, then 0 because the gradient is.
        return grad * clip(p * clip(base.pow(p - 1))), None


class _TensorPow(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, p: Tensor) -> Tensor:
        return clip(_inside(x, p).pow(p))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, p, y = ctx.saved_tensors
        grad_x = grad_p = None
        if ctx.needs_input_grad[0]:
            base = _inside(x, p)
            is_pole = (base == 0) & (p < 1) | (base != x)
            base = base.masked_fill(is_pole, 1)
            grad_x = grad.masked_fill(is_pole, 0) * clip(p * clip(base.pow(p - 1)))
        if ctx.needs_input_grad[1]:
            log = x.clamp_min(0).log().clamp_min(log_least(x.dtype))
            grad_p = gate(grad, x) * clip(y * log)
        return grad_x, grad_p


def _inside(x: Tensor, p: Tensor) -> Tensor:
    """The base, 0 where it is negative and the exponent is fractional."""
    return x.masked_fill((x < 0) & (p != p.round()), 0)


def safe_pow(x: Tensor, exponent: Tensor | float) -> Tensor:
    """x ** exponent; 0 for a negative base with a fractional exponent, gradient zero at the pole.

    Prevents: the infinite derivative at 0 for exponents below 1 (GeM pooling, focal weights), NaN
    for a slightly negative base, and overflow, which is held at the dtype's largest number (so
    0 ** -1 is that number). The exponent may be a tensor that is learned.

    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> safe_pow(x, 0.5).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.2500])
    """
    if not isinstance(exponent, Tensor):
        return run(_ScalarPow, as_float(x), float(exponent))
    return run(_TensorPow, *_pair(x, exponent, "x", "exponent"))


class _PLogP(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor) -> tuple[Tensor, Tensor]:
        log = p.clamp_min(0).log().clamp_min(log_least(p.dtype))
        return (p.clamp_min(0) * log).clamp_max(torch.finfo(p.dtype).max), log

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        p, log = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: the saved log has no history
            log = safe_log(p)
        return gate(grad, p) * (log + 1)


def p_log_p(p: Tensor) -> Tensor:
    """p * log(p), the term of an entropy; 0 at zero and below, gradient zero there.

    Prevents: `0 * log(0) = NaN`, and the infinite derivative that `torch.special.entr` and
    `torch.xlogy` have at 0.

    >>> p_log_p(torch.tensor([0.0, 0.5, 1.0]))
    tensor([-0.0000, -0.3466,  0.0000])
    """
    value: Tensor = _PLogP.apply(as_float(p, "p"))[0]  # type: ignore[no-untyped-call]
    return value


class _Bound(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        x, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        # Descent moves x against the gradient: a negative one leads up, and is kept below `high`.
        up, down = gate(grad.clamp_max(0), ctx.high - x), gate(grad.clamp_min(0), x - ctx.low)
        return up + down, None, None


def bound(x: Tensor, low: float, high: float) -> Tensor:
    """clamp(x, low, high) that x can come back from: a gradient that leads inside is let through.

    Prevents: the dead parameter behind `clamp`. Once a log-variance or a temperature is beyond the
    limit, `clamp` gives it a zero gradient for ever, also when the loss would pull it back.

    >>> x = torch.tensor([9.0], requires_grad=True)
    >>> bound(x, -5.0, 5.0).square().sum().backward()
    >>> x.grad
    tensor([10.])
    """
    if not low < high:
        raise UsageError(f"`low` must be below `high`, got {low} and {high}")
    return run(_Bound, as_float(x), float(low), float(high))

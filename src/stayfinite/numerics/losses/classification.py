"""Losses over classes and rankings."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from ..eps import broadcast, choice, gate, log_least, run, saturate, widen
from ..masked import masked_mean, reduce_loss

__all__ = [
    "binary_focal_loss",
    "bpr_loss",
    "focal_loss",
    "masked_cross_entropy",
]


def bpr_loss(positive: Tensor, negative: Tensor, *, reduction: str = "mean") -> Tensor:
    """Bayesian personalized ranking: -log sigmoid(positive - negative).

    Prevents: `-log(sigmoid(score))`, inf from a score of -104 on in fp32 (-17 in fp16), and
    `-log(sigmoid(score) + 1e-8)`, which in fp16 is the same and in fp32 has no gradient left where
    the ranking is worst. Half precision is computed and returned in fp32.

    >>> bpr_loss(torch.tensor([-200.0]), torch.tensor([0.0]))
    tensor(200.)
    """
    score = saturate(widen(positive, "positive") - widen(negative, "negative"))
    return reduce_loss(-F.logsigmoid(score), reduction)


class _FocalTerm(torch.autograd.Function):
    """-(1 - p)^gamma log p as a function of log p, with the derivative in closed form.

    The product rule has terms that overflow, and a 0 * inf at p = 1 for gamma below 1, although
    their sum is bounded.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(log_p: Tensor, gamma: float) -> Tensor:
        return -log_p * log_p.expm1().neg().pow(gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        log_p, ctx.gamma = inputs
        ctx.save_for_backward(log_p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (log_p,) = ctx.saved_tensors
        rest = -log_p.expm1()
        # p log(p) / (1 - p) goes to -1 at p = 1; the tiny offset gives 0 / tiny there, and the
        # weight (1 - p)^gamma in front makes the difference vanish for gamma above 0.
        ratio = log_p.exp() * (log_p / rest.clamp_min(torch.finfo(log_p.dtype).tiny))
        return grad * rest.pow(ctx.gamma) * (ctx.gamma * ratio - 1), None


def _check_gamma(gamma: float) -> float:
    if not gamma >= 0 or math.isinf(gamma):
        raise UsageError(f"`gamma` must be a finite number of at least 0, got {gamma!r}")
    return float(gamma)


class _BinaryFocal(torch.autograd.Function):
    """yes * focal term of sigmoid(z) + no * focal term of sigmoid(-z), derivative in closed form."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, yes: Tensor, no: Tensor, gamma: float) -> Tensor:
        p, q, log_p, log_q = _sides(z)
        return -(yes * q.pow(gamma) * log_p + no * p.pow(gamma) * log_q)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        *tensors, ctx.gamma = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        z, yes, no = ctx.saved_tensors
        gamma: float = ctx.gamma
        p, q, log_p, log_q = _sides(z)
        weight_yes, weight_no = q.pow(gamma), p.pow(gamma)
        slope = yes * weight_yes * (gamma * p * log_p - q)
        slope = slope - no * weight_no * (gamma * q * log_q - p)
        by_yes = grad * -weight_yes * log_p if ctx.needs_input_grad[1] else None
        by_no = grad * -weight_no * log_q if ctx.needs_input_grad[2] else None
        return grad * slope, by_yes, by_no, None


def _sides(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sigmoid(z), sigmoid(-z) and their logs; 1 - sigmoid(z) would be 0 from z = 17 on."""
    log_p = F.logsigmoid(z)
    return z.sigmoid(), (-z).sigmoid(), log_p, F.logsigmoid(-z)


def binary_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    alpha: float | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss for independent yes/no targets in [0, 1]; `alpha` is the weight of "yes".

    Prevents: `(1 - p) ** gamma` with p = sigmoid(logit): p rounds to 1, the power has an infinite
    derivative for gamma < 1, and log(p) is -inf at the other end. gamma = 0 is the ordinary binary
    cross-entropy. Half precision is computed and returned in fp32.

    >>> binary_focal_loss(torch.tensor([1000.0, -1000.0]), torch.tensor([1.0, 1.0]))
    tensor(500.)
    """
    _check_smoothing(label_smoothing)
    z = widen(logits, "logits")
    t = target.to(z.dtype) * (1 - label_smoothing) + label_smoothing / 2
    yes = t if alpha is None else alpha * t
    no = 1 - t if alpha is None else (1 - alpha) * (1 - t)
    return reduce_loss(run(_BinaryFocal, z, *broadcast(yes, no), _check_gamma(gamma)), reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise UsageError(f"`label_smoothing` must be within 0 and 1, got {label_smoothing!r}")


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss for one class out of C: logits (N, C, …), target (N, …) of class numbers.

    Prevents: `(1 - p) ** gamma * -log(p)` with p from a softmax that has reached 0 or 1. With
    gamma = 0 it is `F.cross_entropy`, class weights, smoothing and ignored targets included;
    where all are ignored it is 0 with gradient zero. A class at -inf takes no smoothing.
    Half precision is computed and returned in fp32.

    >>> logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    >>> focal_loss(logits, torch.tensor([1]), gamma=0.5).backward()
    >>> logits.grad
    tensor([[ 1., -1.]])
    """
    return _class_loss(logits, target, gamma, weight, label_smoothing, ignore_index, reduction)


def masked_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
    on_empty: str = "zero",
) -> Tensor:
    """`F.cross_entropy` that is 0 with gradient zero where every target is ignored.

    Prevents: 0/0 in the mean of a batch whose targets are all `ignore_index` (a short last batch, a
    prompt without an answer), inf for smoothing mass on classes that are masked with -inf (they
    take none here), and NaN for a row that is all -inf. A target that is itself masked counts as
    the smallest positive probability of the dtype, gradient zero. `on_empty="raise"` turns an
    empty batch into an error instead, which costs a look at the device.

    >>> masked_cross_entropy(torch.zeros(2, 3), torch.tensor([-100, -100]))
    tensor(0.)
    """
    choice("on_empty", on_empty, ("zero", "raise"))
    if on_empty == "raise" and bool((target == ignore_index).all()):
        raise UsageError(
            f"masked_cross_entropy: all {target.numel()} targets are ignore_index={ignore_index}\n"
            'try: drop such batches, or pass on_empty="zero"'
        )
    return _class_loss(logits, target, 0.0, weight, label_smoothing, ignore_index, reduction)


def _class_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float,
    weight: Tensor | None,
    label_smoothing: float,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    _check_smoothing(label_smoothing)
    dim = 1 if logits.ndim > 1 else 0
    x = widen(logits, "logits")
    log_p = F.log_softmax(gate(x, _live_rows(x, dim)), dim)
    is_used = target != ignore_index
    index = target.masked_fill(~is_used, 0).unsqueeze(dim)
    class_weight = None if weight is None else weight.to(x.dtype)
    picked = log_p.gather(dim, index).masked_fill(
        x.gather(dim, index) == -math.inf, log_least(x.dtype)
    )
    used = is_used.to(x.dtype)
    row_weight = used if class_weight is None else used * class_weight[index.squeeze(dim)]
    loss = _class_term(picked.squeeze(dim), gamma) * row_weight
    if label_smoothing:
        is_open = x != -math.inf
        term = _class_term(gate(log_p, is_open), gamma)
        if class_weight is not None:
            term = term * class_weight.view(-1, *[1] * (x.ndim - dim - 1))
        spread = masked_mean(term, is_open, dim)
        loss = (1 - label_smoothing) * loss + label_smoothing * (spread * used)
    return reduce_loss(loss, reduction, row_weight.sum())


def _live_rows(x: Tensor, dim: int) -> Tensor:
    """1 for each row that has a class that is not -inf, in the shape of x."""
    return (x.amax(dim, keepdim=True) != -math.inf).to(x.dtype).expand_as(x)


def _class_term(log_p: Tensor, gamma: float) -> Tensor:
    # Differences of logits may overflow to -inf; a held entry has no gradient.
    log_p = saturate(log_p)
    return -log_p if gamma == 0 else run(_FocalTerm, log_p, _check_gamma(gamma))

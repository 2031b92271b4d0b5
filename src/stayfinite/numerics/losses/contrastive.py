"""Losses that compare two views: contrastive and by mutual information."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from ..eps import gate, log_least, saturate, widen
from ..masked import masked_mean, masked_sum
from ..ops import bound, log_of, safe_div, safe_log
from ..reduce import polar
from .classification import masked_cross_entropy

__all__ = ["TemiOutput", "beta_mi", "info_nce", "temi_loss"]


def info_nce(
    query: Tensor,
    keys: Tensor,
    *,
    temperature: Tensor | float = 0.1,
    min_temperature: float = 0.01,
    is_symmetric: bool = False,
) -> Tensor:
    """InfoNCE: row i of `query` (N, D) must find row i of `keys` (M >= N, D) by cosine.

    Prevents: NaN for a zero embedding, overflow of `q @ k.T / temperature` in half precision, and
    the learned temperature that falls until it does: it is kept at `min_temperature` at least, and
    can come back from there. The product is computed in fp32, also under autocast.

    >>> info_nce(torch.eye(3), torch.eye(3), temperature=0.0) < 1e-3
    tensor(True)
    """
    if not min_temperature > 0:
        raise UsageError(f"`min_temperature` must be above 0, got {min_temperature!r}")
    with torch.autocast(query.device.type, enabled=False):
        q, _ = polar(query, -1, 1 / min(min_temperature, 1))
        k, _ = polar(keys, -1, 1 / min(min_temperature, 1))
        t = torch.as_tensor(temperature, dtype=q.dtype, device=q.device)
        logits = q @ k.mT / bound(t, min_temperature, torch.finfo(q.dtype).max)
        target = torch.arange(q.shape[-2], device=q.device)
        loss = masked_cross_entropy(logits, target)
        if is_symmetric:
            loss = 0.5 * (loss + masked_cross_entropy(logits[:, : q.shape[-2]].mT, target))
    return loss


def beta_mi(p1: Tensor, p2: Tensor, pk: Tensor, beta: float = 0.6) -> Tensor:
    """Pointwise mutual information of two assignments: log sum_k (p1 p2)^beta / pk, over dim -1.

    Prevents: `log(0)` where the two share no cluster, the infinite derivative of `x ** beta` at 0,
    and the division by a cluster that nobody uses. A probability of 0 counts as the smallest
    positive number, and gets no gradient. Clamping the products at 1e-8 instead, as is often done,
    is 0 in fp16, and in fp32 large enough to be the result. Half precision is computed and
    returned in fp32.

    >>> beta_mi(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]))
    tensor(0.6931)
    """
    a, b = widen(p1, "p1"), widen(p2, "p2")
    log_pk = log_of(widen(pk, "pk"), pk.dtype)
    joint = beta * (log_of(a, p1.dtype) + log_of(b, p2.dtype)) - log_pk
    return torch.logsumexp(joint, -1)


class TemiOutput(NamedTuple):
    """What `temi_loss` returns."""

    loss: Tensor
    """The mean over the heads that were used; 0 with gradient zero if there was none."""
    is_skipped: Tensor
    """For each head, whether it was left out because its logits were not finite."""


def temi_loss(
    student: tuple[Tensor, Tensor],
    teacher: tuple[Tensor, Tensor],
    marginal: Tensor,
    *,
    beta: float = 0.6,
    student_temperature: float = 0.1,
    teacher_temperature: float = 0.05,
    min_temperature: float = 0.04,
) -> TemiOutput:
    """The TEMI clustering loss of two views, over heads: logits (H, N, K), marginal (H, K).

    -1/2 of the weighted mean over pairs of `beta_mi(student of one view, teacher of the other)`,
    with the pair's weight the overlap of the two teachers, averaged over the heads
    (Adaloglou et al. 2023, arXiv:2303.17896).

    Prevents: the softmax of logits over a temperature near 0, weights that sum to 0 (uniform
    then), and one bad head that corrupts all: a head with a NaN or inf in its logits is left out,
    without a gradient and without a look at the device, and named in `is_skipped`.

    >>> x = torch.randn(2, 8, 5)
    >>> out = temi_loss((x, x), (x, x), torch.full((2, 5), 0.2))
    >>> out.loss.isfinite(), out.is_skipped
    (tensor(True), tensor([False, False]))
    """
    for name, t in (("student", student_temperature), ("teacher", teacher_temperature)):
        if not t > 0 or not math.isfinite(t):
            raise UsageError(f"`{name}_temperature` must be a finite number above 0, got {t!r}")
    views = [widen(v) for v in (*student, *teacher)]
    # A NaN comes through amax and amin, so the extremes show it.
    ends = [end for v in views for end in (v.amax((1, 2)), v.amin((1, 2)))]
    is_used = torch.stack(ends).isfinite().all(0)
    views = [gate(v, is_used.to(v.dtype)[:, None, None].expand_as(v)) for v in views]
    temperatures = [max(student_temperature, min_temperature)] * 2
    temperatures += [max(teacher_temperature, min_temperature)] * 2
    s1, s2, t1, t2 = (_log_probs(v, t) for v, t in zip(views, temperatures))
    t1, t2 = t1.detach(), t2.detach()
    weight = _pair_weights(t1, t2, is_used)
    log_pk = safe_log(widen(marginal, "marginal")).unsqueeze(-2)
    pmi = _log_beta_mi(s1, t2, log_pk, beta) + _log_beta_mi(s2, t1, log_pk, beta)
    heads = masked_sum(-0.5 * pmi * weight, dim=-1)
    return TemiOutput(masked_mean(heads, is_used), ~is_used)


def _log_probs(logits: Tensor, temperature: float) -> Tensor:
    # Held at a half of the range, so that the sum of two of them is finite.
    lowest = torch.finfo(logits.dtype).min / 4
    return F.log_softmax(saturate(logits / temperature), -1).clamp_min(lowest)


def _log_beta_mi(log_p1: Tensor, log_p2: Tensor, log_pk: Tensor, beta: float) -> Tensor:
    total = torch.logsumexp(beta * (log_p1 + log_p2) - log_pk, -1)
    # No shared cluster at all: the log of the smallest positive number, as in `beta_mi`.
    return total.clamp_min(log_least(total.dtype))


def _pair_weights(t1: Tensor, t2: Tensor, is_used: Tensor) -> Tensor:
    """(N,) weights that sum to 1: the teachers' overlap, uniform if there is none at all."""
    overlap = masked_mean((t1 + t2).exp().sum(-1), is_used[:, None], 0)
    total = overlap.sum()
    is_zero = (total == 0).to(overlap.dtype)
    return safe_div(overlap, total) + is_zero / overlap.shape[0]

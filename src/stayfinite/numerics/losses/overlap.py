"""Losses of overlap between a predicted and a true region."""

from __future__ import annotations

import torch
from torch import Tensor

from ..eps import widen
from ..masked import reduce_loss
from ..ops import safe_div

__all__ = ["dice_loss", "iou_loss"]


def _overlap(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(intersection, sum of both sizes) of each sample, computed in fp32 at least."""
    p = torch.sigmoid(widen(logits, "logits"))
    t = target.to(p.dtype)
    if p.ndim > 1:
        p, t = p.flatten(1), t.flatten(1)
    # Numbers within 0 and 1: in fp32 no sum of them overflows.
    return (p * t).sum(-1), p.sum(-1) + t.sum(-1)


def dice_loss(
    logits: Tensor, target: Tensor, *, smooth: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - Dice coefficient of sigmoid(logits) and a target in [0, 1], for each sample.

    Prevents: 0/0 where both regions are empty (the loss is 0 there, gradient zero), and the sums of
    an ordinary image (300 × 300 pixels) that overflow fp16. Half precision is computed and returned
    in fp32. The first dimension is the sample.

    >>> dice_loss(torch.full((1, 4), -1000.0), torch.zeros(1, 4))
    tensor(0.)
    """
    both, sizes = _overlap(logits, target)
    return reduce_loss(1 - safe_div(2 * both + smooth, sizes + smooth, at_zero=1.0), reduction)


def iou_loss(
    logits: Tensor, target: Tensor, *, smooth: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - intersection over union (Jaccard) of sigmoid(logits) and a target in [0, 1].

    Prevents: what `dice_loss` prevents: 0/0 for two empty regions, and overflow of fp16 sums.

    >>> iou_loss(torch.tensor([[1000.0, -1000.0]]), torch.tensor([[1.0, 1.0]]))
    tensor(0.5000)
    """
    both, sizes = _overlap(logits, target)
    union = (sizes - both).clamp_min(0)
    return reduce_loss(1 - safe_div(both + smooth, union + smooth, at_zero=1.0), reduction)

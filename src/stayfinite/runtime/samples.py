"""Which samples of a batch are not finite, and the batch without their bad values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..numerics.health import is_finite
from .batches import named_tensors

__all__ = ["bad_rows", "zeroed"]


def bad_rows(batch: object, total: int | None) -> list[int]:
    """Rows of a batch that hold a NaN or Inf; [-1] where it cannot be told by rows.

    >>> bad_rows((torch.tensor([[1.0], [float("nan")]]), torch.zeros(2)), 2)
    [1]
    """
    rows: set[int] = set()
    for _, t in named_tensors(batch):
        if is_finite(t):
            continue
        if total is None or t.dim() == 0 or t.shape[0] != total or t.layout != torch.strided:
            return [-1]
        per_row = torch.isfinite(t.detach()).reshape(total, -1).all(dim=1)
        rows.update(torch.nonzero(~per_row).flatten().tolist())
    return sorted(rows)


def zeroed(t: Tensor) -> Tensor:
    """The tensor with zeros in place of what is not finite."""
    if not t.is_floating_point() or is_finite(t):
        return t
    clean = torch.nan_to_num(t.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    return clean.requires_grad_(t.requires_grad)

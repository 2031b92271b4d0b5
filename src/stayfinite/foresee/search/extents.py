"""Boxes in a batch, and whether one of them may have no extent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from .parts import Part, part_of

__all__ = ["boxes", "firm_boxes", "is_flat"]

_EVEN = (4, 6)
"""The number of values in a box given by two corners."""
_ALIKE, _FEW = 1e-3, 0.25
"""Sizes within this relative distance are equal; boxes have few sizes if the distinct ones are below this share."""


def boxes(parts: Sequence[Part]) -> list[Part]:
    """Rows of 4 or 6 numbers whose second half has always been the larger one."""
    return [
        p
        for p in parts
        if p.kind in ("input", "target")
        and p.is_float
        and p.has_rows
        and p.tensor.dim() in (2, 3)
        and p.tensor.shape[-1] in _EVEN
        and bool((_extent(p.tensor) >= 0).all())
    ]


def firm_boxes(parts: Sequence[Part], batches: Sequence[Any]) -> list[Part]:
    """Boxes of a few sizes, none near 0: anchors, crops. A hand-drawn box may be a point."""
    return [p for p in boxes(parts) if _is_firm(p, batches)]


def _is_firm(box: Part, batches: Sequence[Any]) -> bool:
    named = [named_tensors(b) for b in batches]
    seen = [_extent(t).reshape(-1) for tensors in named for n, t in tensors if n == box.name]
    extents = torch.cat(seen)
    sizes = part_of(box.name, extents, box.kind, extents.to("cpu", torch.float64))
    if sizes.may_be_zero:
        return False
    known = (extents / sizes.middle / _ALIKE).round().unique()
    return len(known) <= _FEW * len(extents)


def is_flat(box: Part, batch: Any) -> bool:
    """Whether one of these boxes has no extent in this batch.

    >>> rows = torch.tensor([[0.0, 0, 20, 20], [5, 5, 25, 25]])
    >>> (box,) = boxes([part_of("batch", rows, "input", rows.double())])
    >>> is_flat(box, rows), is_flat(box, rows * 0)
    (False, True)
    """
    return any(bool((_extent(t) <= 0).any()) for n, t in named_tensors(batch) if n == box.name)


def _extent(t: Tensor) -> Tensor:
    first, second = t.detach().chunk(2, -1)
    return second - first

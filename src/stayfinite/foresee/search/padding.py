"""Sequences that consist of padding only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors

__all__ = ["padding_of"]


def padding_of(name: str, batches: Sequence[Any]) -> int | None:
    """The number that fills up short sequences, known by where it stands; None if there is none.

    >>> padding_of("batch", [torch.tensor([[5, 7, 0, 0], [3, 0, 0, 0], [9, 8, 4, 6]])])
    0
    >>> padding_of("batch", [torch.tensor([[5, 0, 7, 0], [3, 0, 0, 0]])]) is None
    True
    """
    rows = [t for b in batches for n, t in named_tensors(b) if n == name and t.dim() == 2]
    for is_left in (False, True):
        sides = [t.flip(1) if is_left else t for t in rows]
        found = {int(v) for t in sides for v in t[t[:, -1] == t[:, -2], -1]} if _fit(rows) else ()
        for value in sorted(found):
            if _only_at_the_end(sides, value):
                return value
    return None


def _fit(rows: list[Tensor]) -> bool:
    return bool(rows) and all(t.shape[1] > 1 for t in rows)


def _only_at_the_end(rows: list[Tensor], value: int) -> bool:
    """Runs of different length, at the end of several rows, and nowhere else."""
    lengths: list[int] = []
    for t in rows:
        is_value = t == value
        run = is_value.flip(1).to(torch.int64).cumprod(1).sum(1)
        if int(run.sum()) != int(is_value.sum()):
            return False
        lengths += run.tolist()
    return sum(n > 0 for n in lengths) > 1 and len(set(lengths)) > 1

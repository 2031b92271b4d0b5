"""Measures how far a batch is from real ones, and makes batches in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from ...runtime.rows import map_tensors
from .parts import Part

__all__ = ["Distance", "between", "distance"]


@dataclass(frozen=True)
class Distance:
    """The difference between a batch and the real one that it was made from."""

    num_rows: int
    """The number of changed samples."""
    total: int
    share: float
    """The share of all values that was changed."""
    beyond: float
    """The largest magnitude over the largest that was seen of that part."""

    def words(self) -> str:
        """As text.

        >>> Distance(1, 16, 0.06, 1.0).words()
        'a real batch with 1 of 16 samples changed, every value within what was seen'
        >>> Distance(1, 16, 0.06, 30.0).words()
        'a real batch with 1 of 16 samples changed, up to 30 times the largest value seen'
        >>> Distance(0, 10, 0.06, 1.0).words()
        'a real batch with 6% of its values changed, every value within what was seen'
        """
        if not self.share:
            return "a real batch as it is"
        rows = f"{self.num_rows} of {self.total} samples"
        if not self.num_rows:
            rows = f"{self.share:.0%} of its values"
        far = (
            f"up to {self.beyond:.3g} times the largest value seen"
            if self.beyond > 1.0001
            else "every value within what was seen"
        )
        return f"a real batch with {rows} changed, {far}"


def distance(real: Any, new: Any, parts: list[Part], total: int | None) -> Distance | None:
    """How `new` differs from the real batch that it was made of; None where shapes differ."""
    old, changed = dict(named_tensors(real)), dict(named_tensors(new))
    rows: set[int] = set()
    num_values = num_changed = 0
    beyond = 0.0
    for part in parts:
        a, b = old.get(part.name), changed.get(part.name)
        if a is None or b is None or a.shape != b.shape:
            return None
        is_new = a != b
        num_values += a.numel()
        num_changed += int(is_new.sum())
        if part.has_rows and total:
            rows |= set(is_new.reshape(total, -1).any(1).nonzero().flatten().tolist())
        if part.is_float and bool(is_new.any()):
            beyond = max(beyond, float(b.detach().abs().max()) / max(part.peak, 1e-30))
    return Distance(len(rows), total or 0, num_changed / max(1, num_values), beyond)


def between(real: Any, new: Any, share: float) -> Any:
    """Interpolate from the real batch to the other one; values that are not floats are those of the other one."""
    other = {id(t): u for (_, t), (_, u) in zip(named_tensors(real), named_tensors(new))}

    def mixed(t: Tensor) -> Tensor:
        end = other.get(id(t), t)
        if not t.is_floating_point() or end.shape != t.shape:
            return end
        with torch.no_grad():
            return (t + share * (end - t)).to(t.dtype)

    return map_tensors(real, mixed)

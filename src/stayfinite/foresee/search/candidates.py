"""A batch to try, with what is known of its likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from .parts import Part, change

__all__ = ["Candidate", "Seen", "all_rows", "first_row", "on_rows", "one_in"]

_TOLD = 1e-7
"""Probabilities below this count as impossible."""

LEVELS = ("certain", "likely", "possible", "far")
"""certain: it is in the data, or follows from it; likely: such samples were seen; possible: a small change of a real
sample; far: unrealistic data.
"""


@dataclass(frozen=True)
class Candidate:
    """One batch to try."""

    family: str
    """The kind of change: "blank", "repeated", "mask"."""
    what: str
    """The change as text: "one sample of batch[0] all zero"."""
    make: Callable[[], Any]
    """Makes the batch; the real one is not changed."""
    level: str = "possible"
    why: str = ""
    """The likelihood as text: "2 of 1,000 rows seen are blank"."""
    may_raise: bool = False
    """Whether code may reject such a batch, which is not a fault."""
    is_wild: bool = False
    """Whether it is so unlikely that results on weights far ahead mean little."""
    probability: float | None = None
    """The probability in one step, if known."""


@dataclass(frozen=True)
class Seen:
    """The real batches from which candidates are made."""

    batches: Sequence[Any]
    parts: Sequence[Part]
    num_rows: int | None
    can_change_rows: bool = True
    is_half: bool = False
    """Whether the training computes in half precision, with its small range."""
    is_costly: bool = False
    """Whether an exception on a batch ends a script, which then has to be restarted."""
    num_ids: tuple[int, ...] = ()
    """The sizes of the model's embedding tables."""
    num_last: int | None = None
    """The number of samples in an epoch's last batch; 0: as many as the others, None: unknown."""

    @property
    def batch(self) -> Any:
        return self.batches[0]

    def of_kind(self, *kinds: str) -> list[Part]:
        return [p for p in self.parts if p.kind in kinds]

    def changed(self, parts: Sequence[Part], how: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
        """A candidate whose batch is made with these parts changed, when it is needed."""
        return lambda: change(self.batch, parts, how)


def first_row(how: Callable[[Tensor], Tensor], total: int | None) -> Callable[[Tensor], Tensor]:
    """The same change for the first sample only."""
    return on_rows(how, total, 1)


def on_rows(
    how: Callable[[Tensor], Tensor], total: int | None, number: int
) -> Callable[[Tensor], Tensor]:
    """The same change for the first samples only; for all of it where it has no samples."""

    def changed(t: Tensor) -> Tensor:
        if total is None or t.dim() == 0 or t.shape[0] != total:
            return how(t)
        new = t.clone()
        new[:number] = how(t[:number])
        return new

    return changed


def one_in(chance: float) -> str:
    """The frequency of such a batch in random sampling, as text; "" if it is negligible.

    >>> one_in(0.0026), one_in(1e-9)
    (': by chance one batch in 385', '')
    """
    return f": by chance one batch in {1 / chance:,.0f}" if chance > _TOLD else ""


def all_rows(parts: Sequence[Part], batches: Sequence[Any]) -> Iterator[tuple[Part, Tensor]]:
    """Every seen row of these parts: one tensor a part, rows first."""
    for part in parts:
        rows = [
            t.detach().reshape(t.shape[0], -1)
            for b in batches
            for n, t in named_tensors(b)
            if n == part.name and t.dim() > 0
        ]
        width = rows[0].shape[1] if rows else 0
        same = [r for r in rows if r.shape[1] == width]
        if same:
            yield part, torch.cat(same)

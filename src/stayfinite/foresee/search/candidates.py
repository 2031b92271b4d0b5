"""A batch to try, with what is known of its likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from .parts import Part, change

__all__ = ["Candidate", "Seen", "all_rows", "first_row", "on_rows"]

LEVELS = ("certain", "likely", "possible", "far")
"""certain: it is in the data, or follows from it; likely: such samples were seen; possible: a small
change of a real sample; far: data that nobody would feed."""


@dataclass(frozen=True)
class Candidate:
    """One batch to try."""

    family: str
    """The kind of change: "blank", "repeated", "mask"."""
    what: str
    """The change in words: "one sample of batch[0] all zero"."""
    make: Callable[[], Any]
    """Makes the batch; the real one stays as it is."""
    level: str = "possible"
    why: str = ""
    """How likely it is, in words: "2 of 1,000 rows seen are blank"."""
    may_raise: bool = False
    """Code may well refuse such a batch, which says nothing against it."""
    is_wild: bool = False
    """Far out already: on weights that have moved far as well it says little."""
    probability: float | None = None
    """Of coming in one step, where that is known."""


@dataclass(frozen=True)
class Seen:
    """The batches that candidates are made from."""

    batches: Sequence[Any]
    parts: Sequence[Part]
    num_rows: int | None
    can_change_rows: bool = True
    is_half: bool = False
    """The training computes in half precision, where every limit is near."""
    is_costly: bool = False
    """A batch that is refused ends a script, which has to be started again."""
    num_ids: tuple[int, ...] = ()
    """The sizes of the model's embedding tables."""
    num_last: int | None = None
    """How many samples an epoch's last batch has; 0: as many as the others, None: not known."""

    @property
    def batch(self) -> Any:
        return self.batches[0]

    def of_kind(self, *kinds: str) -> list[Part]:
        return [p for p in self.parts if p.kind in kinds]

    def changed(self, parts: Sequence[Part], how: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
        """Makes the batch with these parts changed, when it is asked for."""
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

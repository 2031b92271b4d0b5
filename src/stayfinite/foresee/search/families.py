"""The structured search: every kind of batch worth trying, the most likely failures first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...runtime.rows import num_rows
from .candidates import Candidate, Seen
from .classes import columns, float_classes, one_sided, unlike, weak
from .empty import empties, empty_batches, plain_empties
from .ids import bands, groups, ids, tokens, unseen_padding
from .joint import both, corners, halves, swapped
from .packed import packed
from .parts import parts_of
from .plain_numbers import flags, numbers
from .ragged import doubled, growing, shorter
from .rows import blank, constant, inner, pairs, repeated, rest
from .structure import labels, lengths, masks, sizes, widths
from .values import certainties, ends, opposites, outliers, shifted, tiny, zeros

__all__ = ["FAMILIES", "candidates"]

FAMILIES: tuple[Callable[[Seen], Iterator[Candidate]], ...] = (
    masks, labels, tokens, ids, groups, unseen_padding, doubled, bands, blank, zeros, certainties, constant, repeated, pairs, inner, ends,
    outliers, opposites, corners, halves, both, swapped, rest, tiny, shifted, float_classes, columns, one_sided, unlike, weak, lengths, packed, empties, empty_batches, shorter, growing, plain_empties, flags,
    numbers, widths, sizes,
)  # fmt: skip
"""Candidates that code may reject come last, because a script that raises has to be restarted."""


def candidates(
    batches: Sequence[Any],
    can_change_rows: bool = True,
    is_half: bool = False,
    is_costly: bool = False,
    num_ids: Sequence[int] = (),
    num_last: int | None = None,
) -> list[Candidate]:
    """All candidates; those that need implausible data come last."""
    parts = parts_of(batches)
    total = num_rows(batches[0])
    seen = Seen(
        batches, parts, total, can_change_rows, is_half, is_costly, tuple(num_ids), num_last
    )
    found = [c for family in FAMILIES for c in family(seen)]
    return sorted(found, key=lambda c: (c.may_raise, c.level == "far"))

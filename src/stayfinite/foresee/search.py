"""The structured search: every batch worth trying, the likeliest to break a training first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..runtime.rows import num_rows
from .candidates import Candidate, Seen
from .parts import parts_of
from .search_rows import blank, constant, inner, pairs, repeated
from .search_structure import labels, lengths, masks, sizes, tokens, widths
from .search_values import ends, outliers, tiny, zeros

__all__ = ["FAMILIES", "candidates"]

FAMILIES: tuple[Callable[[Seen], Iterator[Candidate]], ...] = (
    masks, labels, tokens, blank, zeros, constant, repeated, pairs, inner, ends, outliers, tiny,
    lengths, widths, sizes,
)  # fmt: skip
"""Those that code may refuse come last: a script that raises has to be started again."""


def candidates(
    batches: Sequence[Any],
    can_change_rows: bool = True,
    is_half: bool = False,
    num_last: int | None = None,
) -> list[Candidate]:
    """All of them; those that need data nobody would feed behind the others."""
    parts = parts_of(batches)
    seen = Seen(batches, parts, num_rows(batches[0]), can_change_rows, is_half, num_last)
    found = [c for family in FAMILIES for c in family(seen)]
    return sorted(found, key=lambda c: (c.may_raise, c.level == "far"))

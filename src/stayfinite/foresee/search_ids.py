"""Ids and tokens: padding, one id all over, ids that agree, ids that were not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .candidates import Candidate, Seen, first_row
from .parts import Part
from .search_classes import one_class

__all__ = ["ids", "tokens"]


def _filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.full_like(t, value)


def tokens(seen: Seen) -> Iterator[Candidate]:
    """A sequence of nothing but padding; one token all over."""
    wide = [p for p in seen.of_kind("labels") if p.tensor.dim() > 1 and p.low >= 0]
    for p in (*seen.of_kind("tokens"), *wide):
        if p.padding is not None:
            how = first_row(_filled(p.padding), seen.num_rows)
            what = f"one sequence of {p.name} with nothing but padding ({p.padding})"
            yield Candidate("padding", what, seen.changed([p], how))
        elif p.tensor.dim() > 1:
            for value in dict.fromkeys((int(p.low), int(p.tensor.reshape(-1)[0]))):
                how = first_row(_filled(value), seen.num_rows)
                what = f"one sample of {p.name} with {value} all over"
                yield Candidate("token", what, seen.changed([p], how))
        if p.padding is not None and p.tensor.dim() == 2:
            how = first_row(_only_first(p.padding), seen.num_rows)
            what = f"one sequence of {p.name} with one token, the rest padding"
            yield Candidate("padding", what, seen.changed([p], how))
        if p.kind == "tokens":
            yield from one_class(seen, p, "category")


def _only_first(padding: int) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        new = torch.full_like(t, padding)
        is_left = t.shape[1] > 1 and bool((t[:, 0] == padding).any())
        place = -1 if is_left else 0
        new[:, place] = t[:, place]
        return new

    return changed


def ids(seen: Seen) -> Iterator[Candidate]:
    """Two ids that agree (a pair of the same thing), and an id that was never seen."""
    parts = [p for p in seen.of_kind("tokens", "labels") if not p.is_float and p.low >= 0]
    for i, a in enumerate(parts):
        for b in parts[i + 1 :]:
            if a.tensor.shape == b.tensor.shape and b.high <= a.high:
                how = first_row(_copied(b.tensor), seen.num_rows)
                what = f"one sample whose {a.name} is its {b.name}"
                yield Candidate("same-id", what, seen.changed([a], how))
        if a.tensor.dim() == 2 and 2 <= a.tensor.shape[1] <= 4 and a.kind == "tokens":
            how = first_row(_equal_columns, seen.num_rows)
            yield Candidate(
                "same-id", f"one sample of {a.name} with equal ids", seen.changed([a], how)
            )
        yield from _unseen(seen, a)


def _copied(other: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda t: other[: t.shape[0]].clone() if t.shape != other.shape else other.clone()


def _equal_columns(t: Tensor) -> Tensor:
    return t[:, :1].expand_as(t).clone()


def _unseen(seen: Seen, p: Part) -> Iterator[Candidate]:
    room = [n for n in seen.num_ids if n > p.high + 1]
    if p.kind != "tokens" or not room or any(n == p.high + 1 for n in seen.num_ids):
        return
    how = first_row(_filled(int(p.high) + 1), seen.num_rows)
    what = f"one sample of {p.name} with an id that was not seen ({int(p.high) + 1})"
    why = f"the table has room for {min(room)} ids"
    yield Candidate("unseen", what, seen.changed([p], how), why=why, may_raise=True)

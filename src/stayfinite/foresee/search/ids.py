"""Ids and tokens: only padding, one id everywhere, equal ids, unseen ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from .candidates import Candidate, Seen, first_row
from .classes import one_class
from .parts import Part

__all__ = ["bands", "groups", "ids", "tokens", "unseen_padding"]

_FEWEST_IDS = 12
_SMALL = 8
"""In a batch of so few samples, all may be alike."""
_FEW, _SHARE = 2, 0.25
"""If a group with so few entries, or this share of the usual number, was seen, an empty one is possible."""
_FEWEST_GROUPS = 3
_EVERYWHERE = 0.9
"""An id in this share of the sequences is a marker (begin, end), not a word."""


def _filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.full_like(t, value)


def tokens(seen: Seen) -> Iterator[Candidate]:
    """A sequence of nothing but padding; one token all over."""
    wide = [p for p in seen.of_kind("labels") if p.tensor.dim() > 1 and p.low >= 0]
    for p in (p for p in (*seen.of_kind("tokens"), *wide) if not p.is_permutation):
        if p.padding is not None:
            how = first_row(_filled(p.padding), seen.num_rows)
            what = f"one sequence of {p.name} with nothing but padding ({p.padding})"
            marks = _always(seen, p) if p.tensor.dim() == 2 else set()
            yield Candidate("padding", what, seen.changed([p], how), "far" if marks else "possible")
            if marks:
                how = first_row(_only_marks(marks, p.padding), seen.num_rows)
                what = f"one sequence of {p.name} with nothing but what every one has ({sorted(marks)})"
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


def _always(seen: Seen, p: Part) -> set[int]:
    """The ids that every sequence seen has: its beginning, its end."""
    rows = [set(r.tolist()) for t in _tensors(seen, p) for r in t]
    return set.intersection(*rows) - {p.padding} if len(rows) >= _SMALL else set()


def _only_marks(marks: set[int], padding: int) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        new = torch.full_like(t, padding)
        is_left = t.shape[1] > 1 and bool((t[:, 0] == padding).any())
        for row, old in zip(new, t):
            kept = [i for i in old.tolist() if i in marks]
            part = row[-len(kept) :] if is_left else row[: len(kept)]
            part.copy_(torch.tensor(kept))
        return new

    return changed


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
    parts = [
        p
        for p in seen.of_kind("tokens", "labels")
        if not (p.is_float or p.is_permutation) and p.low >= 0
    ]
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


def unseen_padding(seen: Seen) -> Iterator[Candidate]:
    """Ids from 1 on, in sequences that all were full: 0 is kept for the padding of shorter ones."""
    for p in seen.of_kind("tokens"):
        is_free = p.low == 1 and p.padding is None and bool(seen.num_ids)
        if not is_free or p.tensor.dim() != 2 or not p.has_rows or p.tensor.shape[1] < 3:
            continue
        for words, is_left in (("begins", True), ("ends", False)):
            what = f"one sequence of {p.name} that {words} with padding (0), which was not seen yet"
            how = first_row(_padded(is_left), seen.num_rows)
            why = "all sequences seen were full, and the table has a row for it"
            yield Candidate("padding", what, seen.changed([p], how), "possible", why)


def _padded(is_left: bool) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        new, number = t.clone(), max(1, t.shape[1] // 3)
        new[:, :number] = 0 if is_left else new[:, :number]
        new[:, -number:] = 0 if not is_left else new[:, -number:]
        return new

    return changed


def groups(seen: Seen) -> Iterator[Candidate]:
    """Numbers that say which group each entry belongs to: a group in the middle without an entry."""
    for p in seen.of_kind("tokens", "lengths", "labels"):
        sizes = _group_sizes(p.tensor)
        if sizes is None:
            continue
        shown = [s for t in _tensors(seen, p) if (s := _group_sizes(t)) is not None]
        every = torch.cat(shown).double()
        fewest, usual = int(every.min()), float(every.median())
        level = "possible" if fewest <= max(_FEW, _SHARE * usual) else "far"
        middle = len(sizes) // 2
        what = f"{p.name} without any entry of group {middle}"
        why = f"groups of {fewest} entries on were seen"
        yield Candidate("group", what, seen.changed([p], _joined(middle)), level, why)


def _group_sizes(t: Tensor) -> Tensor | None:
    """How many entries each group has, where the numbers are those of groups: in order, from 0 on."""
    if t.is_floating_point() or t.dtype == torch.bool or t.dim() != 1 or t.numel() < _FEWEST_GROUPS:
        return None
    steps = t.detach().diff()
    if int(t[0]) != 0 or int(t[-1]) + 1 < _FEWEST_GROUPS or bool((steps < 0).any()):
        return None
    return torch.bincount(t.detach()) if bool((steps == 0).any()) else None


def _joined(group: int) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.where(t == group, group - 1, t)


def bands(seen: Seen) -> Iterator[Candidate]:
    """A small batch whose ids are all of one kind, as vocabularies are ordered: no number, no name.

    Ids that nearly every sequence has (a beginning, an end, padding) stay.
    """
    parts = [
        p
        for p in seen.of_kind("tokens", "labels")
        if not p.is_float and p.has_rows and p.tensor.dim() == 2 and not p.is_permutation
    ]
    if not parts or seen.num_rows is None or seen.num_rows > _SMALL:
        return
    marks = _marks(parts)
    every = torch.cat([t.reshape(-1) for p in parts for t in _tensors(seen, p)]).unique()
    words = [int(i) for i in every if int(i) not in marks]
    if len(words) < _FEWEST_IDS:
        return
    names = " and ".join(p.name for p in parts)
    middle = len(words) // 2
    for which, kept in (("lower", words[:middle]), ("upper", words[middle:])):
        what = f"a batch of {names} with ids from the {which} half of those seen only"
        yield Candidate("band", what, seen.changed(parts, _among(words, kept)))


def _tensors(seen: Seen, p: Part) -> list[Tensor]:
    return [t for b in seen.batches for n, t in named_tensors(b) if n == p.name]


def _marks(parts: list[Part]) -> set[int]:
    """Ids that nearly every sequence has, and those that are no ids."""
    found: set[int] = set()
    for p in parts:
        rows = [set(r.tolist()) for r in p.tensor]
        every = {i for r in rows for i in r}
        found |= {i for i in every if i < 0 or sum(i in r for r in rows) >= _EVERYWHERE * len(rows)}
    return found


def _among(words: list[int], kept: list[int]) -> Callable[[Tensor], Tensor]:
    """Each of these ids becomes one that is kept, the same one always the same; others stay."""
    known = torch.tensor(words)
    new = torch.tensor([kept[i % len(kept)] for i in range(len(words))])

    def changed(t: Tensor) -> Tensor:
        flat = t.reshape(-1).to("cpu", torch.int64)
        places = torch.searchsorted(known, flat).clamp(max=len(words) - 1)
        return torch.where(known[places] == flat, new[places], flat).reshape(t.shape).to(t)

    return changed

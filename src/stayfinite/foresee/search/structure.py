"""Extreme masks, labels, lengths, tokens and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from ...runtime.rows import map_tensors, num_rows, take_rows
from .candidates import Candidate, Seen, first_row, one_in
from .classes import one_class
from .parts import Part, change

__all__ = ["labels", "lengths", "masks", "sizes", "widths"]


_SMALL = 8
"""In a batch of so few samples, all may be alike."""
_COMMON = 0.05
"""A label rarer than this share does not fill a whole batch."""
_FAR_ABOVE = 100
_MOST_ROOM = 4
"""A tensor that is wider than so many times the longest sequence seen is something else."""
_SHORT = 4
"""If a sequence as short as this was seen, one of length 1 is possible."""


def _filled(value: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.full_like(t, value)


def masks(seen: Seen) -> Iterator[Candidate]:
    """A mask that keeps nothing, or everything, for one sample; in half of it; for all."""
    for p in seen.of_kind("mask"):
        for value in (0, 1):
            # A mask that has never hidden (or kept) a thing will not hide (or keep) all of them.
            level = "possible" if p.low <= value <= p.high else "far"
            words = "all 1" if value else "all 0"
            how = first_row(_filled(value), seen.num_rows)
            what = f"{p.name} {words} for one sample"
            yield Candidate("mask", what, _hidden(seen, p, how), level)
        if p.tensor.dim() >= 3 and p.has_rows:
            level = "possible" if p.low == 0 else "far"
            what = f"one row of {p.name} all 0"
            yield Candidate("mask", what, seen.changed([p], _one_line(0)), level)
        if p.tensor.dim() >= 2:
            how = first_row(_but_labels(seen, p), seen.num_rows)
            what = f"every other entry of {p.name} 0"
            yield Candidate("mask-part", what, _hidden(seen, p, how))
        for value in (0, 1):
            words = "all 1" if value else "all 0"
            what = f"{p.name} {words} in a whole batch"
            is_seen = p.low <= value <= p.high
            is_small = seen.num_rows is not None and seen.num_rows <= _SMALL
            level = "possible" if is_seen and is_small else "far"
            yield Candidate("mask-batch", what, _hidden(seen, p, _filled(value)), level)


def _hidden(seen: Seen, mask: Part, how: Callable[[Tensor], Tensor]) -> Callable[[], Any]:
    """The batch with this mask; a mask that says where the ids are goes with them."""
    tied = next((p for p in seen.of_kind("tokens", "labels") if _is_tied(seen, mask, p)), None)

    def make() -> Any:
        if tied is None:
            return change(seen.batch, [mask], how)
        new = how(mask.tensor.detach())
        hidden = change(seen.batch, [mask], lambda t: new)
        return change(hidden, [tied], lambda t: t.masked_fill(new == 0, tied.padding or 0))

    return make


def _is_tied(seen: Seen, mask: Part, ids: Part) -> bool:
    """The mask is 0 where the ids are padding, and nowhere else."""
    if ids.padding is None:
        return False
    for batch in seen.batches:
        named = dict(named_tensors(batch))
        m, t = named.get(mask.name), named.get(ids.name)
        if (
            m is None
            or t is None
            or m.shape != t.shape
            or bool(((t != ids.padding) != (m != 0)).any())
        ):
            return False
    return True


def _one_line(value: int) -> Callable[[Tensor], Tensor]:
    def changed(t: Tensor) -> Tensor:
        new = t.clone()
        new[0, 0] = value
        return new

    return changed


def _but_labels(seen: Seen, mask: Part) -> Callable[[Tensor], Tensor]:
    """Every other entry is hidden; what a label points at stays."""
    shape = mask.tensor.shape
    pointing = [
        p.tensor
        for p in seen.of_kind("labels", "tokens", "lengths")
        if p.tensor.shape == shape[:-1] and p.low >= 0 and p.high < shape[-1]
    ]

    def changed(t: Tensor) -> Tensor:
        new = t.clone()
        new[..., ::2] = 0
        for labels in pointing:
            index = labels[: t.shape[0]].long().unsqueeze(-1)
            new.scatter_(-1, index, t.gather(-1, index))
        return new

    return changed


def labels(seen: Seen) -> Iterator[Candidate]:
    """Batches of one class, with an unseen class, or without any label."""
    total = seen.num_rows or 1
    for p in seen.of_kind("labels"):
        ignored = _ignored(p)
        if ignored is not None:
            share, most = _unlabeled(p, seen.batches, ignored)
            for how, words in (
                (first_row(_filled(ignored), seen.num_rows), "one sample"),
                (_filled(ignored), "a whole batch"),
            ):
                is_all = words == "a whole batch"
                is_near = total <= 2 or share > 0.2 or (most > 0.85 and total <= 4)
                level = "possible" if not is_all or is_near else "far"
                what = f"every label of {words} ignored ({ignored})"
                chance = share**total if is_all and share else None
                why = f"{share:.0%} of the samples seen have no label" if share else ""
                why += one_in(chance) if chance else ""
                make = seen.changed([p], how)
                yield Candidate("no-label", what, make, level, why, probability=chance)
        yield from one_class(seen, p, "class")
        if p.tensor.dim() > 1 and p.low >= 0 and not (p.is_permutation or seen.of_kind("mask")):
            usual = int(p.tensor.mode().values.reshape(-1)[0])
            for value in dict.fromkeys((int(p.low), usual)):
                what = f"every label of a whole batch {value}"
                share = _share(p, seen.batches, value)
                level = "possible" if total <= _SMALL and share >= _COMMON else "far"
                why = f"{share:.1%} of the labels seen are {value}"
                yield Candidate("one-label", what, seen.changed([p], _filled(value)), level, why)


def _ignored(p: Part) -> int | None:
    """The number that stands for no label: a negative one, or one far above all classes (255)."""
    if p.low < 0:
        return int(p.low)
    if p.tensor.dim() < 2 or p.high < _FAR_ABOVE:
        return None
    below = p.tensor[p.tensor < p.high]
    is_apart = below.numel() > 0 and int(below.max()) < p.high / 4
    return int(p.high) if is_apart else None


def _share(p: Part, batches: Sequence[Any], value: int) -> float:
    """The share of this label among those seen."""
    seen = [
        (t == value).float().reshape(-1)
        for b in batches
        for n, t in named_tensors(b)
        if n == p.name
    ]
    return float(torch.cat(seen).mean())


def _unlabeled(p: Part, batches: Sequence[Any], ignored: int) -> tuple[float, float]:
    """(the share of samples without any label, the largest share of ignored labels in one sample)"""
    rows = [
        (t == ignored).reshape(t.shape[0], -1).float().mean(1)
        for b in batches
        for n, t in named_tensors(b)
        if n == p.name
    ]
    shares = torch.cat(rows)
    return float((shares == 1).float().mean()), float(shares.max())


def lengths(seen: Seen) -> Iterator[Candidate]:
    """Sequences of length 1, of length 0; a short one with a long one beside it."""
    parts = seen.of_kind("lengths")
    for p in parts:
        # Where every sequence has had the same length, none has another.
        first = "possible" if p.low < p.high or p.low <= _SHORT else "far"
        for value, level in ((1, first), (0, "possible" if p.low <= 2 else "far")):
            how = first_row(_filled(value), seen.num_rows)
            what = f"one sample with {p.name} {value}"
            yield Candidate("length", what, seen.changed([p], how), level, may_raise=True)
        for width in _room(seen, p):
            how = first_row(_filled(width), seen.num_rows)
            what = f"one sample with {p.name} {width}, as long as there is room"
            yield Candidate("length", what, seen.changed([p], how), may_raise=True)
    for p in parts:
        for q in parts:
            if p is not q:
                what = f"one sample with the shortest {p.name} seen and the longest {q.name}"
                make = _short_and_long(seen, p, q)
                yield Candidate("length", what, make, may_raise=True)


def _room(seen: Seen, p: Part) -> list[int]:
    """The widths of the sequences that these may be the lengths of, where none that was seen fills them."""
    if not p.has_rows or p.low == p.high:
        return []
    wide = (q.tensor for q in seen.parts if q.has_rows and q.tensor.dim() > 1)
    return sorted({t.shape[1] for t in wide if p.high < t.shape[1] <= _MOST_ROOM * p.high})


def _short_and_long(seen: Seen, p: Part, q: Part) -> Callable[[], Any]:
    def make() -> Any:
        new = change(seen.batch, [p], first_row(_filled(p.low), seen.num_rows))
        return change(new, [q], first_row(_filled(q.high), seen.num_rows))

    return make


def sizes(seen: Seen) -> Iterator[Candidate]:
    """The last batch of an epoch; a batch of one sample, of two."""
    total = seen.num_rows
    if total is None or not seen.can_change_rows:
        return
    seen_sizes = {n for b in seen.batches if (n := num_rows(b)) is not None}
    is_varying = len(seen_sizes) > 2 and min(seen_sizes) <= _SMALL
    for number in sorted({seen.num_last or 1, 1, 2}):
        if number >= total:
            continue
        is_last = number == seen.num_last
        level = "certain" if is_last else "possible" if is_varying else "far"
        what = f"a batch of {number} sample{'s' if number > 1 else ''}"
        if is_last:
            what = f"the last batch of an epoch ({number} sample{'s' if number > 1 else ''})"
        yield Candidate(
            "size", what, _cut(seen, number, total), level,
            "the data set's size and the loader's settings say so" if is_last else "",
            may_raise=True,
        )  # fmt: skip


def _cut(seen: Seen, number: int, total: int) -> Callable[[], Any]:
    return lambda: take_rows(seen.batch, range(number), total)


def widths(seen: Seen) -> Iterator[Candidate]:
    """Where sequences have different lengths: one of length 1, and much longer ones."""
    sizes = {w for b in seen.batches if (w := _width(b)) is not None}
    width = _width(seen.batch)
    if not seen.can_change_rows or width is None or any(p.is_permutation for p in seen.parts):
        return
    if len(sizes) < 2:
        yield from _longer_ones(seen, width)
        return
    shortest = min(sizes)
    yield Candidate(
        "short", "sequences of length 1",
        lambda: map_tensors(seen.batch, lambda t: t[:, :1] if _is_wide(t, width) else t),
        "possible" if shortest <= _SHORT else "far", f"lengths from {shortest} on were seen",
        may_raise=True,
    )  # fmt: skip
    for times in (4, 10, 20):
        yield Candidate(
            "long", f"sequences {times} times as long", _stretched(seen, width, times),
            "possible", f"lengths from {min(sizes)} to {max(sizes)} were seen", may_raise=True,
        )  # fmt: skip


def _longer_ones(seen: Seen, width: int) -> Iterator[Candidate]:
    """All sequences were equally long; a model that takes any length may be given a longer one."""
    first = next(p for p in seen.parts if p.tensor.dim() > 1)
    if first.kind != "input" or first.tensor.dim() != 3 or not first.has_rows or seen.is_costly:
        return
    for times in (4, 10):
        yield Candidate(
            "long", f"sequences {times} times as long", _stretched(seen, width, times),
            "possible" if times == 4 else "far", f"all were {width} long", may_raise=True,
        )  # fmt: skip


def _stretched(seen: Seen, width: int, times: int) -> Callable[[], Any]:
    return lambda: map_tensors(seen.batch, lambda t: _longer(t, times) if _is_wide(t, width) else t)


def _is_wide(t: Tensor, width: int) -> bool:
    return t.dim() > 1 and t.shape[1] == width


def _longer(t: Tensor, times: int) -> Tensor:
    return torch.cat([t] * times, 1)


def _width(batch: Any) -> int | None:
    """The length that the batch's sequences are padded to."""
    found = [t.shape[1] for _, t in named_tensors(batch) if t.dim() > 1]
    return found[0] if found else None

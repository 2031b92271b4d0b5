"""Masks, labels, lengths, tokens and sizes at their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..runtime.batches import named_tensors
from ..runtime.rows import map_tensors, take_rows
from .candidates import Candidate, Seen, first_row
from .parts import Part

__all__ = ["labels", "lengths", "masks", "sizes", "tokens", "widths"]


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
            yield Candidate("mask", what, seen.changed([p], how), level)
        if p.tensor.dim() >= 3 and p.has_rows:
            level = "possible" if p.low == 0 else "far"
            what = f"one row of {p.name} all 0"
            yield Candidate("mask", what, seen.changed([p], _one_line(0)), level)
        if p.tensor.dim() >= 2:
            how = first_row(_but_labels(seen, p), seen.num_rows)
            what = f"every other entry of {p.name} 0"
            yield Candidate("mask-part", what, seen.changed([p], how))
        for value in (0, 1):
            words = "all 1" if value else "all 0"
            what = f"{p.name} {words} in a whole batch"
            yield Candidate("mask-batch", what, seen.changed([p], _filled(value)), "far")


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
    """One class only, a class that was not there, nothing labeled at all."""
    total = seen.num_rows or 1
    for p in seen.of_kind("labels"):
        ignored = _ignored(p)
        if ignored is not None:
            share = _unlabeled(p, seen.batches, ignored)
            for how, words in (
                (first_row(_filled(ignored), seen.num_rows), "one sample"),
                (_filled(ignored), "a whole batch"),
            ):
                is_all = words == "a whole batch"
                level = "possible" if not is_all or total <= 4 or share > 0.2 else "far"
                what = f"every label of {words} ignored ({ignored})"
                why = f"{share:.0%} of the samples seen have no label" if share else ""
                yield Candidate("no-label", what, seen.changed([p], how), level, why)
        yield from _one_class(seen, p, "class")


def _one_class(seen: Seen, p: Part, word: str) -> Iterator[Candidate]:
    """Batches of real samples that have the same number, all of them or most."""
    total = seen.num_rows
    if p.tensor.dim() != 1 or not p.has_rows or total is None or not seen.can_change_rows:
        return
    counts = _counts(p, seen.batches)
    if len(counts) > 32:
        return
    for value in sorted(counts, key=lambda v: -counts[v])[:3]:
        share = counts[value] / sum(counts.values())
        why = f"{share:.0%} of the samples seen have it"
        chance = share**total
        level = "likely" if chance > 1e-2 else "possible" if chance > 1e-5 else "far"
        yield Candidate(
            "one-class", f"a batch with {p.name} {value} only ({word})",
            _gathered(seen, p, value, total), level, why, probability=chance,
        )  # fmt: skip
    value = max(counts, key=lambda v: counts[v])
    most = max(1, (3 * total) // 4)
    yield Candidate(
        "skewed", f"a batch with {p.name} {value} in three samples of four",
        _gathered(seen, p, value, most), "possible",
    )  # fmt: skip
    if len(counts) > 2:
        rare = min(counts, key=lambda v: counts[v])
        yield Candidate(
            "absent", f"a batch without any {p.name} {rare}", _without(seen, p, rare), "likely",
            f"{counts[rare]} of {sum(counts.values()):,} samples seen have it",
        )  # fmt: skip


def _gathered(seen: Seen, p: Part, value: int, number: int) -> Callable[[], Any]:
    """The first batch with so many of its samples replaced by real ones that have this number."""

    def make() -> Any:
        total = seen.num_rows or 1
        named = [(b, dict(named_tensors(b))) for b in seen.batches]
        pool = [(b, i) for b, parts in named for i in _where(parts.get(p.name), value, total)]
        rows = [pool[k % len(pool)] for k in range(number)]
        rest = [(seen.batch, i) for i in range(total)]
        return _put_together([*rows, *rest][:total], total)

    return make


def _without(seen: Seen, p: Part, value: int) -> Callable[[], Any]:
    def make() -> Any:
        total = seen.num_rows or 1
        kept = [i for i in range(total) if int(p.tensor[i]) != value]
        return take_rows(seen.batch, [kept[k % len(kept)] for k in range(total)], total)

    return make


def _where(t: Tensor | None, value: int, total: int) -> list[int]:
    if t is None or t.dim() != 1 or t.shape[0] != total:
        return []
    return [int(i) for i in (t == value).nonzero().flatten()]


def _put_together(rows: list[tuple[Any, int]], total: int) -> Any:
    """One batch out of rows of several; parts whose rows differ in shape cannot be."""
    first = rows[0][0]
    tensors = [dict(named_tensors(b)) for b, _ in rows]
    names = {id(t): n for n, t in named_tensors(first)}

    def gather(t: Tensor) -> Tensor:
        if t.dim() == 0 or t.shape[0] != total:
            return t
        parts = [x[names[id(t)]][i] for x, (_, i) in zip(tensors, rows)]
        return torch.stack([p.detach() for p in parts])

    return map_tensors(first, gather)


def _ignored(p: Part) -> int | None:
    if p.low < 0:
        return int(p.low)
    return None


def _unlabeled(p: Part, batches: Sequence[Any], ignored: int) -> float:
    rows = [
        (t == ignored).reshape(t.shape[0], -1).all(1).float()
        for b in batches
        for n, t in named_tensors(b)
        if n == p.name
    ]
    return float(torch.cat(rows).mean())


def _counts(p: Part, batches: Sequence[Any]) -> dict[int, int]:
    seen = torch.cat([t.reshape(-1) for b in batches for n, t in named_tensors(b) if n == p.name])
    values, counts = seen.unique(return_counts=True)
    return dict(zip(values.tolist(), counts.tolist()))


def lengths(seen: Seen) -> Iterator[Candidate]:
    """Sequences of length 1, of length 0."""
    for p in seen.of_kind("lengths"):
        for value, level in ((1, "possible"), (0, "far")):
            how = first_row(_filled(value), seen.num_rows)
            what = f"one sample with {p.name} {value}"
            yield Candidate("length", what, seen.changed([p], how), level, may_raise=True)


def tokens(seen: Seen) -> Iterator[Candidate]:
    """A sequence of nothing but padding; the same token all over."""
    for p in seen.of_kind("tokens"):
        if p.padding is not None:
            how = first_row(_filled(p.padding), seen.num_rows)
            what = f"one sequence of {p.name} with nothing but padding ({p.padding})"
            yield Candidate("padding", what, seen.changed([p], how))
        elif p.tensor.dim() > 1:
            how = first_row(lambda t: t[:, :1].expand_as(t), seen.num_rows)
            yield Candidate("token", f"one sample of {p.name} with one token all over", seen.changed([p], how))
        yield from _one_class(seen, p, "category")


def sizes(seen: Seen) -> Iterator[Candidate]:
    """The last batch of an epoch; a batch of one sample, of two."""
    total = seen.num_rows
    if total is None or not seen.can_change_rows:
        return
    for number in sorted({seen.num_last or 1, 1, 2}):
        if number >= total:
            continue
        is_last = number == seen.num_last
        what = f"a batch of {number} sample{'s' if number > 1 else ''}"
        if is_last:
            what = f"the last batch of an epoch ({number} sample{'s' if number > 1 else ''})"
        yield Candidate(
            "size", what, _cut(seen, number, total), "certain" if is_last else "far",
            "the data set's size and the loader's settings say so" if is_last else "",
            may_raise=True,
        )  # fmt: skip


def _cut(seen: Seen, number: int, total: int) -> Callable[[], Any]:
    return lambda: take_rows(seen.batch, range(number), total)


def widths(seen: Seen) -> Iterator[Candidate]:
    """Where sequences have different lengths: one of length 1, and much longer ones."""
    sizes = {_width(b) for b in seen.batches} - {None}
    width = _width(seen.batch)
    if len(sizes) < 2 or not seen.can_change_rows or width is None:
        return
    yield Candidate(
        "short", "sequences of length 1",
        lambda: map_tensors(seen.batch, lambda t: t[:, :1] if _is_wide(t, width) else t),
        "far", may_raise=True,
    )  # fmt: skip
    for times in (4, 10, 20):
        yield Candidate(
            "long", f"sequences {times} times as long",
            lambda times=times: map_tensors(
                seen.batch, lambda t: _longer(t, times) if _is_wide(t, width) else t
            ),
            "possible", f"lengths from {min(sizes)} to {max(sizes)} were seen", may_raise=True,
        )  # fmt: skip


def _is_wide(t: Tensor, width: int) -> bool:
    return t.dim() > 1 and t.shape[1] == width


def _longer(t: Tensor, times: int) -> Tensor:
    return torch.cat([t] * times, 1)


def _width(batch: Any) -> int | None:
    """The length that the batch's sequences are padded to."""
    found = [t.shape[1] for _, t in named_tensors(batch) if t.dim() > 1]
    return found[0] if found else None


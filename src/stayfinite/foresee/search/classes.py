"""Batches of real samples that are alike: of one class, most of one, none of a rare one, all small or all large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from ...runtime.rows import map_tensors
from .candidates import Candidate, Seen, all_rows, one_in
from .parts import Part

__all__ = ["columns", "float_classes", "one_class", "one_sided", "unlike", "weak"]

_ARRANGED = 3.0
"""If so many of the seen batches should have lacked a class by chance and none did, a sampler balances them."""
_MOST_PARTS = 4
_RARE = 1e-4
"""The probability, in random sampling, of the most unusual batch that is tried."""
_FEWEST_BATCHES = 3
_FEW_SAMPLES = 4
"""In a batch of so few samples, all may be weak."""
_WEAKER = 0.5
_SOMETIMES = 1e-3
"""The probability, in random sampling, of a batch without the cluster that is tried."""
_CENTERS = 4


def float_classes(seen: Seen) -> Iterator[Candidate]:
    """Batches of one class, for class numbers stored as floats: a binary target, a rating."""
    for p in seen.of_kind("input", "target"):
        if p.is_float and p.is_whole and p.num_values <= 8:
            yield from one_class(seen, p, "value")


def columns(seen: Seen) -> Iterator[Candidate]:
    """Several labels a sample: a batch of real samples of which none has the rarest one, or all the most usual."""
    total = seen.num_rows
    if total is None or not seen.can_change_rows:
        return
    for p in seen.of_kind("mask")[:_MOST_PARTS]:
        if p.tensor.dim() != 2 or not p.has_rows or p.tensor.shape[1] < 2:
            continue
        for _, rows in all_rows([p], seen.batches):
            shares = rows.double().mean(0)
            for value, share in ((0, 1 - shares.min()), (1, shares.max())):
                column = int(shares.argmin() if value == 0 else shares.argmax())
                chance = float(share) ** total
                is_arranged = chance * len(seen.batches) > _ARRANGED
                yield Candidate(
                    "absent", f"a batch with {p.name}[:, {column}] {value} only",
                    _gathered_where(seen, p, total, column, value),
                    "possible" if chance > 1e-5 and not is_arranged else "far",
                    f"{float(share):.0%} of the samples seen have it{one_in(chance)}", probability=chance,
                )  # fmt: skip


def _gathered_where(seen: Seen, p: Part, total: int, column: int, value: int) -> Callable[[], Any]:
    def make() -> Any:
        rows = _pool(seen, p, total, lambda t: t[:, column] == value)
        return _put_together(_enough(rows, total, len(rows), total), total)

    return make


def one_sided(seen: Seen) -> Iterator[Candidate]:
    """Real samples without any large value, or without any small one: nothing is above a threshold."""
    total = seen.num_rows
    if total is None or not seen.can_change_rows or len(seen.batches) < _FEWEST_BATCHES:
        return
    floats = [p for p in seen.of_kind("target", "input") if p.is_float and p.has_rows]
    share = max(1 / len(seen.batches), _RARE ** (1 / total))
    for p in [p for p in floats if not (p.is_code or p.is_unit)][:_MOST_PARTS]:
        for word, is_low in (("large", True), ("small", False)):
            yield Candidate(
                "one-sided", f"a batch of real samples without any {word} {p.name}",
                _extreme(seen, p, total, share, is_low), "possible",
                f"{share:.0%} of the samples seen are so, by chance {share**total:.0e} of the batches",
                probability=share**total,
            )  # fmt: skip


def unlike(seen: Seen) -> Iterator[Candidate]:
    """Real samples without those most like one of them: a cluster that a small batch may lack."""
    total = seen.num_rows
    if total is None or not seen.can_change_rows or len(seen.batches) < _FEWEST_BATCHES:
        return
    share = 1 - _SOMETIMES ** (1 / total)
    wide = [p for p in seen.of_kind("input") if p.is_float and p.has_rows and p.tensor.dim() == 2]
    for p in wide[:1]:
        for number in range(_CENTERS):
            yield Candidate(
                "unlike", f"a batch of real samples, none of them among the {share:.0%} nearest to one of {p.name} ({number})",
                _far_from(seen, p, total, share, number), "possible",
                f"by chance {_SOMETIMES:.0e} of the batches", probability=_SOMETIMES,
            )  # fmt: skip


def _far_from(seen: Seen, p: Part, total: int, share: float, number: int) -> Callable[[], Any]:
    """A batch without one cluster: that around the sample furthest from the centers of the others."""

    def make() -> Any:
        rows = _pool(seen, p, total, lambda t: torch.ones(len(t), dtype=torch.bool))
        values = torch.stack([dict(named_tensors(b))[p.name][i].detach().float() for b, i in rows])
        nearest = (values - values.mean(0)).norm(dim=1)
        for _ in range(number + 1):
            apart = (values - values[nearest.argmax()]).norm(dim=1)
            nearest = torch.minimum(nearest, apart)
        kept = apart.argsort()[int(share * len(rows)) + 1 :].sort().values.tolist()
        picked = [rows[i] for i in kept]
        return _put_together(_enough(picked, total, len(picked), total), total)

    return make


def weak(seen: Seen) -> Iterator[Candidate]:
    """Targets that are all half as large: no overlap, no score above a threshold."""
    for p in seen.of_kind("target")[:_MOST_PARTS]:
        is_score = p.is_float and p.is_positive and p.tensor.dim() > 1 and p.has_rows
        if is_score and not (p.is_code or p.is_unit or p.is_tight):
            is_near = seen.num_rows is not None and seen.num_rows <= _FEW_SAMPLES
            what = f"{p.name} half as large in a whole batch"
            make = seen.changed([p], lambda t: _WEAKER * t)
            yield Candidate("weak", what, make, "possible" if is_near else "far")


def _extreme(seen: Seen, p: Part, total: int, share: float, is_low: bool) -> Callable[[], Any]:
    """Real samples of this share of them, by the largest value of each (or the smallest)."""

    def make() -> Any:
        rows = _pool(seen, p, total, lambda t: torch.ones(len(t), dtype=torch.bool))
        named = [dict(named_tensors(b))[p.name][i].detach() for b, i in rows]
        ends = torch.stack([t.max() if is_low else -t.min() for t in named])
        number = max(total, int(share * len(rows)))
        order = ends.argsort()[:number].tolist()
        picked = [rows[order[i * len(order) // total]] for i in range(total)]
        return _put_together(_enough(picked, total, len(rows), total), total)

    return make


def one_class(seen: Seen, p: Part, word: str) -> Iterator[Candidate]:
    """Batches of real samples that have the same number, all of them or most."""
    total = seen.num_rows
    if p.tensor.dim() != 1 or not p.has_rows or total is None or not seen.can_change_rows:
        return
    counts = _counts(p, seen.batches)
    if len(counts) > 32:
        return
    for value in sorted(counts, key=lambda v: -counts[v])[:3]:
        share = counts[value] / sum(counts.values())
        chance = share**total
        why = f"{share:.0%} of the samples seen have it{one_in(chance)}"
        level = "likely" if chance > 1e-2 else "possible" if chance > 1e-5 else "far"
        yield Candidate(
            "one-class", f"a batch with {p.name} {value:g} only ({word})",
            _gathered(seen, p, value, total), level, why, probability=chance,
        )  # fmt: skip
    value = max(counts, key=lambda v: counts[v])
    most = max(1, (3 * total) // 4)
    yield Candidate(
        "skewed", f"a batch with {p.name} {value:g} in three samples of four",
        _gathered(seen, p, value, most), "possible",
    )  # fmt: skip
    if len(counts) > 2:
        yield from _absent(seen, p, counts, total)


def _absent(seen: Seen, p: Part, counts: dict[int, int], total: int) -> Iterator[Candidate]:
    """A batch without the rarest class, unless a sampler sees to it that each has them all."""
    rare = min(counts, key=lambda v: counts[v])
    share = counts[rare] / sum(counts.values())
    chance = (1 - share) ** total
    is_arranged = chance * len(seen.batches) > _ARRANGED
    yield Candidate(
        "absent", f"a batch without any {p.name} {rare:g}", _without(seen, p, rare),
        "possible" if chance > 1e-4 and not is_arranged else "far",
        f"{counts[rare]} of {sum(counts.values()):,} samples seen have it{one_in(chance)}", probability=chance,
    )  # fmt: skip


def _gathered(seen: Seen, p: Part, value: int, number: int) -> Callable[[], Any]:
    """The first batch with this many of its samples replaced by real ones that have this number."""

    def make() -> Any:
        total = seen.num_rows or 1
        rows = _pool(seen, p, total, lambda t: t == value)[:number]
        rest = [(seen.batch, i) for i in range(total) if not _has(rows, seen.batch, i)]
        return _put_together(_enough([*rows, *rest], number, len(rows), total), total)

    return make


def _without(seen: Seen, p: Part, value: int) -> Callable[[], Any]:
    def make() -> Any:
        total = seen.num_rows or 1
        rows = _pool(seen, p, total, lambda t: t != value)
        return _put_together(_enough(rows, total, len(rows), total), total)

    return make


def _enough(
    rows: list[tuple[Any, int]], number: int, num_found: int, total: int
) -> list[tuple[Any, int]]:
    """The first `total` of these samples. None is used twice, which would be another kind of candidate."""
    if num_found < number or len(rows) < total:
        raise ValueError("too few such samples were seen")
    return rows[:total]


def _has(rows: list[tuple[Any, int]], batch: Any, i: int) -> bool:
    return any(b is batch and j == i for b, j in rows)


def _pool(
    seen: Seen, p: Part, total: int, is_wanted: Callable[[Tensor], Tensor]
) -> list[tuple[Any, int]]:
    """(batch, row) of every real sample that is wanted."""
    found = []
    for batch in seen.batches:
        t = dict(named_tensors(batch)).get(p.name)
        if t is not None and t.dim() > 0 and t.shape[0] == total:
            found += [(batch, int(i)) for i in is_wanted(t).nonzero().flatten()]
    return found


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


def _counts(p: Part, batches: Sequence[Any]) -> dict[int, int]:
    seen = torch.cat([t.reshape(-1) for b in batches for n, t in named_tensors(b) if n == p.name])
    values, counts = seen.unique(return_counts=True)
    return dict(zip(values.tolist(), counts.tolist()))

"""Values outside the seen range: outliers, range ends, exact zeros, tiny values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .candidates import Candidate, Seen, first_row, one_in
from .parts import Part

__all__ = ["certainties", "ends", "opposites", "outliers", "shifted", "tiny", "zeros"]

_MOST_PARTS = 6
_MILD = 30.0
FACTORS = (
    (3.0, "narrow"),
    (10.0, "possible"),
    (30.0, "possible"),
    (100.0, "possible"),
    (300.0, "half"),
    (1e4, "far"),
)
"""How many times as large as the others, and how likely that is; "half": of inputs, where a training
computes in half precision and every limit is near, and of amounts (counts, prices), which have long tails; "narrow": of quantities that hardly vary, which have
no other."""


def _level(name: str, seen: Seen, p: Part) -> str:
    if p.is_narrow and p.kind == "input":
        return "possible" if name == "narrow" and not p.is_tight else "far"
    if name == "half":
        is_near = seen.is_half or p.is_skewed
        return "possible" if is_near and p.kind == "input" else "far"
    return "far" if name == "narrow" else name


def outliers(seen: Seen) -> Iterator[Candidate]:
    """One sample many times larger than the others; signs stay."""
    floats = [p for p in seen.of_kind("input", "target") if p.is_float and not p.is_bounded]
    floats = [p for p in floats if not p.is_code][:_MOST_PARTS]
    for factor, name in FACTORS:
        for p in floats:
            if name != "narrow" or (p.is_narrow and p.kind == "input"):
                yield from _outliers(seen, p, factor, _level(name, seen, p))
    inputs = [p for p in floats if p.kind == "input"]
    wide = [p for p in inputs if p.tensor.dim() > 1]
    for factor, name in FACTORS:
        parts = wide if factor > _MILD else inputs
        if name == "narrow" or not parts:
            continue
        levels = {"far" if name == "half" else _level(name, seen, p) for p in parts}
        what = f"a whole batch {factor:g} times as large"
        make = seen.changed(parts, _times(factor))
        level = "far" if "far" in levels else "possible"
        yield Candidate("outlier-batch", what, make, level, is_wild=factor > _MILD)


def _outliers(seen: Seen, p: Part, factor: float, level: str) -> Iterator[Candidate]:
    is_wild = factor > _MILD
    if is_wild and p.tensor.dim() < 2:
        level = "far"  # a weight, a log probability: no feature in units of its own
    make = seen.changed([p], first_row(_times(factor), seen.num_rows))
    what = f"one sample of {p.name} {factor:g} times as large"
    yield Candidate("outlier", what, make, level, is_wild=is_wild)
    if p.tensor.dim() == 2 and p.has_rows:
        what = f"one value of {p.name} {factor:g} times the largest seen"
        make = seen.changed([p], _one(p, factor))
        yield Candidate("outlier-value", what, make, level, is_wild=is_wild)


def _one(p: Part, factor: float) -> Callable[[Tensor], Tensor]:
    value = factor * (p.high if abs(p.high) >= abs(p.low) else p.low)

    def changed(t: Tensor) -> Tensor:
        new = t.clone()
        peak = t.abs().sum(0).argmax()  # the feature that is largest already
        new[0, peak] = value
        return new

    return changed


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda t: t * factor


def ends(seen: Seen) -> Iterator[Candidate]:
    """Values at the ends of their range: a saturated pixel, a probability of exactly 0 or 1."""
    for p in seen.of_kind("input", "target"):
        if not p.is_float or not p.is_bounded or p.is_code:
            continue
        middle = (p.low + p.high) / 2
        low, high = (0.0 if p.low >= 0 else -1.0), 1.0
        for words, how in (
            ("at the ends of its range", _to_ends(middle, low, high)),
            ("all at the lower end", lambda t, v=low: torch.full_like(t, v)),
            ("all at the upper end", lambda t, v=high: torch.full_like(t, v)),
        ):
            what = f"one sample of {p.name} {words}"
            yield Candidate("ends", what, seen.changed([p], first_row(how, seen.num_rows)))


def _to_ends(middle: float, low: float, high: float) -> Callable[[Tensor], Tensor]:
    return lambda t: torch.where(t > middle, high, low)


def certainties(seen: Seen) -> Iterator[Candidate]:
    """A distribution with all its mass in one place."""
    for p in seen.of_kind("input", "target"):
        if p.is_distribution and p.num_values > 2:
            how = first_row(_one_hot, seen.num_rows)
            what = f"one sample of {p.name} with all its mass in one place"
            level = "possible" if p.may_concentrate else "far"
            yield Candidate("certain", what, seen.changed([p], how), level)


def _one_hot(t: Tensor) -> Tensor:
    return torch.zeros_like(t).scatter_(-1, t.argmax(-1, keepdim=True), 1.0)


def zeros(seen: Seen) -> Iterator[Candidate]:
    """An exact zero where only positive numbers were seen: a count, a weight, an area."""
    for p in seen.of_kind("input", "target"):
        if not p.is_float or not p.is_positive or p.low == 0:
            continue
        may_be_zero = p.may_concentrate if p.is_distribution else p.may_be_zero
        level = "possible" if may_be_zero else "far"
        if p.tensor.dim() == 1 or (p.tensor.dim() == 2 and p.tensor.shape[1] == 1):
            how = first_row(torch.zeros_like, seen.num_rows)
            what = f"one sample with {p.name} exactly 0"
        else:
            how = _without_one if p.is_distribution else _one_zero
            what = f"one value of {p.name} exactly 0"
        yield Candidate("zero", what, seen.changed([p], how), level)
    for p in seen.of_kind("input", "target", "tokens", "lengths"):
        if p.tensor.dim() != 1 or not p.has_rows or p.low < 0 or (p.low == 0 and not p.is_float):
            continue
        if not p.is_float:
            how = first_row(torch.zeros_like, seen.num_rows)
            what = f"one sample with {p.name} 0"
            yield Candidate(
                "zero", what, seen.changed([p], how), "possible" if p.low <= 1 else "far"
            )
        elif p.low == 0 or p.is_whole:
            what = f"{p.name} 0 in a whole batch"
            level = "possible" if p.low == 0 else "far"
            chance = p.zero_share ** (seen.num_rows or 1)
            why = f"{p.zero_share:.0%} of its values seen are 0{one_in(chance)}"
            make = seen.changed([p], torch.zeros_like)
            yield Candidate("zero-batch", what, make, level, why, probability=chance)


def _one_zero(t: Tensor) -> Tensor:
    new = t.clone()
    new.view(-1)[0] = 0
    return new


def _without_one(t: Tensor) -> Tensor:
    """A distribution in which one thing is impossible."""
    new = _one_zero(t)
    return new / new.sum(-1, keepdim=True)


def opposites(seen: Seen) -> Iterator[Candidate]:
    """A sample with every sign turned, where both signs were seen: a swapped wire, another direction."""
    for p in seen.of_kind("input")[:_MOST_PARTS]:
        if p.is_float and p.has_rows and p.low < 0 < p.high and not p.is_code:
            how = first_row(_mirrored(p), seen.num_rows)
            what = f"one sample of {p.name} with every value at the other end of its range"
            yield Candidate("opposite", what, seen.changed([p], how))


def _mirrored(p: Part) -> Callable[[Tensor], Tensor]:
    """Each value as far from the upper end as it was from the lower one."""
    return lambda t: (p.low + p.high) - t


def tiny(seen: Seen) -> Iterator[Candidate]:
    """Samples that are nearly blank: a quiet recording, a dark image."""
    for factor, level in ((1e-4, "possible"), (1e-12, "far")):
        for p in seen.of_kind("input")[:_MOST_PARTS]:
            if p.is_float and not p.is_code:
                how = first_row(_times(factor), seen.num_rows)
                what = f"one sample of {p.name} {factor:g} times as large"
                level = level if p.may_be_zero else "far"
                yield Candidate("tiny", what, seen.changed([p], how), level)


def shifted(seen: Seen) -> Iterator[Candidate]:
    """Images from 0 to 1 with their mean taken away: below black, as many a pipeline gives them."""
    for p in seen.of_kind("input")[:_MOST_PARTS]:
        if p.is_float and p.tensor.dim() >= 4 and p.is_bounded and p.low >= 0 and not p.is_code:
            what = f"a whole batch of {p.name} around 0 instead of from {p.low:.2g} to {p.high:.2g}"
            yield Candidate("shifted", what, seen.changed([p], lambda t: t - t.mean()))

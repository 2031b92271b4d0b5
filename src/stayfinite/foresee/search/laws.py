"""Finds rules that every seen row keeps, too often for chance: a batch that breaks one is not of this data.

A mask that hides nine patches of each image will not hide all twelve; a vector of length 1 will not be 0; where
half of all counts are 1 and none is 0, only what occurs was counted; a sampler that takes two samples of each
class will not take one; a sequence that always begins with the same id always will.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.batches import named_tensors
from .parts import Part

__all__ = ["Law", "laws"]

_FEWEST_ROWS = 12
_WIDEST = 65_536
"""In wider rows, random numbers always have nearly the same norm, which proves no rule."""
_SAME, _OTHER = 2e-4, 0.05
"""Relative distances below which two values are equal, and above which they differ."""
_EXPECTED_ZEROS = 30.0
"""If so many zeros were expected and none was seen, zeros do not occur."""
_EXPECTED_OF_FEW, _FEW_VALUES = 10.0, 5
"""The same if there are only a few distinct values: ratings from 1 to 5."""
_BY_CHANCE = 1e-6
_FEWEST_BATCHES = 5
_MOST_CLASSES = 32
_MOST_VALUES = 20_000
_MOST_ROWS = 4096
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class Law:
    """A rule: its part, and a test whether a tensor keeps it."""

    name: str
    is_kept: Callable[[Tensor], bool]

    def is_broken_by(self, batch: Any) -> bool:
        return any(n == self.name and not self.is_kept(t) for n, t in named_tensors(batch))


def laws(parts: Sequence[Part], batches: Sequence[Any]) -> list[Law]:
    """The rules that hold in these batches.

    >>> from .parts import parts_of
    >>> masks = [torch.rand(8, 6).argsort(1).lt(2) for _ in range(4)]  # two in each row
    >>> found = laws(parts_of(masks), masks)
    >>> [law.is_broken_by(masks[0]) for law in found], [law.is_broken_by(masks[0] & False) for law in found]
    ([False, False, False], [True, True, True])
    """
    named = [dict(named_tensors(b)) for b in batches]
    found: list[Law] = []
    for part in parts:
        seen = [t.detach() for tensors in named if (t := tensors.get(part.name)) is not None]
        for rule in (_fixed_rows, _no_zeros, _even_classes, _fixed_columns):
            found += rule(part, seen)
    return found


def _fixed_rows(part: Part, seen: list[Tensor]) -> Iterator[Law]:
    """Every row has the same sum, the same length or the same spread; what never varied at all proves nothing."""
    is_number = (part.is_float or part.kind == "mask") and part.low < part.high
    wide = [t for t in seen if t.dim() > 1 and t.numel()]
    if not is_number or not wide or not 2 <= wide[0].shape[-1] <= _WIDEST:
        return
    number = max(1, _MOST_ROWS // len(wide))
    rows = [t.reshape(-1, t.shape[-1])[:number] for t in wide]
    for measure in (_sum, _length, _spread):
        values = torch.cat([measure(t) for t in rows])
        usual = float(values.median())
        is_same = bool(((values - usual).abs() <= _SAME * abs(usual)).all())
        if len(values) >= _FEWEST_ROWS and usual > 0 and is_same:
            yield Law(part.name, _near(measure, usual))


def _near(measure: Callable[[Tensor], Tensor], usual: float) -> Callable[[Tensor], bool]:
    def is_kept(t: Tensor) -> bool:
        if t.dim() < 2 or not t.numel():
            return True
        return bool(((measure(t.detach()) - usual).abs() <= _OTHER * usual).all())

    return is_kept


def _sum(t: Tensor) -> Tensor:
    return t.double().sum(-1)


def _length(t: Tensor) -> Tensor:
    return t.double().square().sum(-1).sqrt()


def _spread(t: Tensor) -> Tensor:
    return t.double().std(-1, correction=0)


def _no_zeros(part: Part, seen: list[Tensor]) -> Iterator[Law]:
    """Counts (or amounts on a grid) of which none is 0, though so many are next to it.

    How many zeros to expect: with c counts of 1 and d of 2, c * c / d if they fall off evenly, half as many if
    they are spread like a Poisson's.
    """
    is_counted = (part.is_float and (part.is_whole or part.grid > 0)) or part.kind == "lengths"
    if not is_counted or part.low <= 0:
        return
    step = part.grid or 1.0
    values = torch.cat([t.reshape(-1)[:_MOST_VALUES].double() for t in seen])
    number = (values / step).round()
    ones, twos = int((number == 1).sum()), int((number == 2).sum())
    is_code = part.is_float and part.num_values <= _FEW_VALUES
    fewest = _EXPECTED_OF_FEW if is_code else _EXPECTED_ZEROS
    if ones * ones / (2 * max(twos, 1)) >= fewest:
        yield Law(part.name, lambda t: bool((t > 0).all()))


def _even_classes(part: Part, seen: list[Tensor]) -> Iterator[Law]:
    """A sampler's rule: equally many samples of each class in every batch, or of each class in it."""
    is_class = part.kind in ("labels", "tokens") or part.is_whole
    flat = [t for t in seen if t.dim() == 1 and len(t)]
    if not is_class or not part.has_rows or len(flat) < _FEWEST_BATCHES:
        return
    counts = [_counts(t) for t in flat]
    if any(not 2 <= len(c) <= _MOST_CLASSES for c in counts) or len(flat[0]) == len(counts[0]):
        return
    if all(t.shape == flat[0].shape and bool((t == flat[0]).all()) for t in flat):
        return  # no sampler: the same every time
    size = len(flat[0])
    if all(c == counts[0] for c in counts):
        yield Law(part.name, lambda t: len(t) != size or _counts(t) == counts[0])
    elif len({n for c in counts for n in c.values()}) == 1:
        number = next(iter(counts[0].values()))
        yield Law(part.name, lambda t: len(t) != size or set(_counts(t).values()) == {number})


def _fixed_columns(part: Part, seen: list[Tensor]) -> Iterator[Law]:
    """Ids at the same position of every sequence, such as its begin marker."""
    wide = [t for t in seen if t.dim() == 2]
    if part.is_float or part.kind not in ("tokens", "labels") or not part.has_rows or not wide:
        return
    width = min(t.shape[1] for t in wide)
    rows = torch.cat([t[:, :width] for t in wide])
    columns = (rows == rows[:1]).all(0).nonzero().flatten().tolist()
    for column in columns[:_MOST_COLUMNS]:
        value = int(rows[0, column])
        share = float((rows == value).double().mean())
        if value != part.padding and share ** len(rows) < _BY_CHANCE:
            yield Law(part.name, _stands_at(column, value))


def _stands_at(column: int, value: int) -> Callable[[Tensor], bool]:
    def is_kept(t: Tensor) -> bool:
        return t.dim() != 2 or t.shape[1] <= column or bool((t[:, column] == value).all())

    return is_kept


def _counts(t: Tensor) -> dict[float, int]:
    values, counts = t.detach().unique(return_counts=True)
    return dict(zip(values.tolist(), counts.tolist()))

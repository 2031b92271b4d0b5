"""Samples that are unusual in two ways: extreme features and a target without extent."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .candidates import Candidate, Seen, all_rows, first_row
from .extents import boxes
from .parts import Part, change

__all__ = ["both", "corners", "halves", "swapped"]

_MOST_PARTS = 4
_TIMES = (30.0, -30.0, 0.0)
_ALIKE = 10.0
"""Two parts are interchangeable if their magnitudes differ at most by this factor."""
_LOUD = 30.0

How = Callable[[Tensor], Tensor]


def halves(seen: Seen) -> Iterator[Candidate]:
    """A box of no extent: its second corner is its first one."""
    for p in boxes(seen.parts)[:_MOST_PARTS]:
        what = f"one sample of {p.name} whose second half equals its first (no extent)"
        yield Candidate("extent", what, seen.changed([p], first_row(_equal_halves, seen.num_rows)))


def _equal_halves(t: Tensor) -> Tensor:
    first = t.chunk(2, -1)[0]
    return torch.cat([first, first], -1)


def corners(seen: Seen) -> Iterator[Candidate]:
    """Every feature of one sample at the lowest, or the highest, that was seen of it."""
    for p in seen.of_kind("input")[:_MOST_PARTS]:
        if not p.is_float or not p.has_rows or p.tensor.dim() < 2 or p.is_code or p.is_unit:
            continue
        for _, rows in all_rows([p], seen.batches):
            for words, ends in (("lowest", rows.amin(0)), ("highest", rows.amax(0))):
                if ends.numel() == p.tensor[0].numel():
                    what = f"one sample of {p.name} with every feature at the {words} seen"
                    how = first_row(_put(ends), seen.num_rows)
                    yield Candidate("corner", what, seen.changed([p], how))


def _put(values: Tensor) -> How:
    return lambda t: values.reshape(t.shape[1:]).expand_as(t).to(t.dtype)


def both(seen: Seen) -> Iterator[Candidate]:
    """Extreme features, and another part of the same sample without extent or blank."""
    known = boxes(seen.parts)[:_MOST_PARTS]
    inputs = [p for p in seen.of_kind("input") if _is_free(p)][:2]
    for p in inputs:
        others: list[tuple[Part, How, str]]
        others = [(b, _equal_halves, "without extent") for b in known if b is not p]
        others += [
            (q, _times(0.0), "blank")
            for q in seen.of_kind("input", "target")
            if q is not p and _is_free(q) and q.may_be_zero and q.tensor.dim() > 1 and q.may_rest
        ][:2]
        for times in _TIMES:
            for q, how, words in others:
                shown = f"{times:g} times as large" if times else "all zero"
                what = f"one sample with {p.name} {shown} and {q.name} {words}"
                is_wild = bool(times)
                make = _two(seen, p, _times(times), q, how)
                yield Candidate("both", what, make, is_wild=is_wild)


def swapped(seen: Seen) -> Iterator[Candidate]:
    """Two parts that could be each other (real and generated, anchor and negative): the other way round."""
    floats = [p for p in seen.of_kind("input", "target") if _is_signal(p) and p.tensor.dim() > 1]
    for i, p in enumerate(floats[:_MOST_PARTS]):
        for q in floats[i + 1 : _MOST_PARTS]:
            if p.tensor.shape != q.tensor.shape or p.tensor.dtype != q.tensor.dtype:
                continue
            if not 1 / _ALIKE <= p.peak / q.peak <= _ALIKE:
                continue
            for times in (1.0,) if p.is_bounded and q.is_bounded else (1.0, _LOUD):
                shown = f", {times:g} times as large" if times > 1 else ""
                what = f"one sample with {p.name} and {q.name} the other way round{shown}"
                make = _exchanged(seen, p, q, times)
                yield Candidate("swapped", what, make, is_wild=times > 1)


def _exchanged(seen: Seen, p: Part, q: Part, times: float) -> Callable[[], object]:
    def other(t: Tensor) -> How:
        return first_row(lambda own: times * t.detach()[: len(own)], seen.num_rows)

    def make() -> object:
        new = change(seen.batch, [p], other(q.tensor))
        return change(new, [q], other(p.tensor))

    return make


def _is_free(p: Part) -> bool:
    return _is_signal(p) and not p.is_bounded


def _is_signal(p: Part) -> bool:
    return p.is_float and p.has_rows and p.low < 0 < p.high and not (p.is_code or p.is_unit)


def _times(factor: float) -> How:
    return lambda t: t * factor


def _two(seen: Seen, p: Part, how: How, q: Part, other: How) -> Callable[[], object]:
    def make() -> object:
        new = change(seen.batch, [p], first_row(how, seen.num_rows))
        return change(new, [q], first_row(other, seen.num_rows))

    return make

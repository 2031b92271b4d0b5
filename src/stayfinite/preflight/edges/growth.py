"""Finds values that grow while a copy of the training runs, and when they would overflow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...detect.climb import LIMITS
from ..probes import Subject
from ..records import Finding, passed, warned
from .ahead import Ahead

__all__ = ["Growth", "growing", "judge_growth"]

_LEAST_RISE = 8.0
"""How many times larger it has to be than at the start: weights that begin at zero double easily."""
_HORIZON = 10_000
_LEAST = 1e-3
"""What is smaller is still on its way up from zero: a gate that opens, a moment that fills. Its rate says nothing."""
_FEWEST = 4


@dataclass(frozen=True)
class Growth:
    """One weight or moment that rises from look to look."""

    name: str
    first: float
    last: float
    per_step: float
    """The factor of one step, at the slowest rate seen."""
    step: int
    """The step at which it leaves its dtype."""
    dtype: str


def growing(peaks: Sequence[tuple[int, dict[str, float]]], dtypes: dict[str, str]) -> Growth | None:
    """The one that is over its dtype's limit soonest, if it goes on as it does.

    Only what has risen at every look, at a rate that does not fall, is taken to go on.

    >>> peaks = [(8 * i, {"w": 2.0**i}) for i in range(8)]
    >>> found = growing(peaks, {"w": "float16"})
    >>> found.name, found.step, round(found.per_step, 2)
    ('w', 127, 1.09)
    >>> growing([(8 * i, {"w": 1.0 + i}) for i in range(8)], {"w": "float16"}) is None
    True
    >>> growing([(8 * i, {"w": 1e-9 * 2.0**i}) for i in range(8)], {"w": "float16"}) is None
    True
    """
    if len(peaks) < _FEWEST:
        return None
    found = [g for name in peaks[-1][1] if (g := _growth(name, peaks, dtypes)) is not None]
    return min(found, key=lambda g: g.step, default=None)


def _growth(
    name: str, peaks: Sequence[tuple[int, dict[str, float]]], dtypes: dict[str, str]
) -> Growth | None:
    known = [(step, sizes[name]) for step, sizes in peaks if sizes.get(name, 0.0) > 0]
    known = [(step, size) for step, size in known if size >= _LEAST]
    if len(known) < _FEWEST or known[-1][1] < _LEAST_RISE * known[0][1]:
        return None
    rates = [math.log(b[1] / a[1]) / max(1, b[0] - a[0]) for a, b in itertools.pairwise(known)]
    later = rates[len(rates) // 2 :]
    earlier = rates[: len(rates) // 2]
    if min(rates) <= 0 or min(later) < 0.8 * max(earlier):
        return None  # it levels off
    dtype = dtypes.get(name.partition(":")[0], "float32")
    rate = min(later)
    step = known[-1][0] + math.log(LIMITS.get(dtype, LIMITS["float32"]) / known[-1][1]) / rate
    if step > _HORIZON:
        return None
    return Growth(name, known[0][1], known[-1][1], math.exp(rate), int(step), dtype)


def judge_growth(subject: Subject, ahead: Ahead) -> list[Finding]:
    """What the steps ahead show about weights and moments."""
    if len(ahead.steps) < 2:
        return []
    dtypes = {n: str(p.dtype).removeprefix("torch.") for n, p in subject.parameters()}
    found = growing(ahead.peaks, dtypes)
    if found is None:
        text = f"no weight or moment grows without end in {len(ahead.steps)} steps"
        return [passed("edges", "edges/growth", text)]
    return [
        warned(
            "edges",
            "edges/growth",
            f"grows from {found.first:.3g} to {found.last:.3g} in {len(ahead.steps)} steps, by "
            f"{100 * (found.per_step - 1):.2g} % in each: it leaves {found.dtype} at about step "
            f"{found.step:,}",
            "lower the learning rate, add weight decay, or normalize this layer",
            subject=found.name,
            weight=5,
            data={"step": found.step, "per_step": found.per_step},
        )
    ]

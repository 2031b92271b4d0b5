"""Detects a value that climbs towards its dtype's limit, and estimates the steps left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LIMITS", "Climb", "climb"]

LIMITS = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
_LEAST_RISE = 30.0
"""The minimum size relative to the usual: losses of small batches vary a lot."""
_NEW_HEIGHT = 3.0
"""The minimum size relative to the largest value before the climb."""
_FEWEST = 3
"""The minimum number of rising values in a row: a single rise is a spike."""
_STEADY = 0.3
"""The minimum ratio of the last two growth rates."""
_DOUBLING = math.log(2)
"""Three such rises in a row always count as a climb, because a divergence accelerates."""
_HORIZON = 100.0


@dataclass(frozen=True)
class Climb:
    """A climb, and when it reaches the limit at this rate."""

    first: float
    last: float
    num_steps: int
    """The number of steps over which it has risen without a pause."""
    steps_left: float

    def describe(self, name: str, dtype: str) -> str:
        """A line of text for the user.

        >>> Climb(2.0, 3e5, 4, 11.2).describe("loss", "float32")
        'the loss has grown from 2 to 3e+05 in 4 steps: at this pace it leaves the range of float32 in about 12 steps'
        """
        left = max(1, math.ceil(self.steps_left))
        return (
            f"the {name} has grown from {self.first:.4g} to {self.last:.4g} in {self.num_steps} "
            f"steps: at this pace it leaves the range of {dtype} in about {left} "
            f"step{'s' if left != 1 else ''}"
        )


def climb(values: Sequence[float], limit: float, every: int = 1) -> Climb | None:
    """Check whether these values (oldest first, one in `every` steps) rise towards the limit.

    >>> climb([1.0, 1.1, 0.9, 1.0, 9.0, 80.0, 700.0], 3.4e38).num_steps
    4
    >>> climb([1.0, 1.1, 0.9, 1.0, 900.0, 1.0, 1.1], 3.4e38) is None
    True
    >>> climb([31.0, 95.0, 895.0, 1.6e9], 3.4e38).num_steps
    3
    """
    sizes = [abs(v) for v in values]
    if len(sizes) < _FEWEST or not all(0 < v < limit for v in sizes[-_FEWEST:]):
        return None
    start = len(sizes) - 1
    while start > 0 and 0 < sizes[start - 1] < sizes[start]:
        start -= 1
    rising = sizes[start:]
    usual = sorted(sizes[: start + 1])[(start + 1) // 2]
    if len(rising) < _FEWEST or rising[-1] < _LEAST_RISE * max(usual, rising[0]):
        return None
    if rising[-1] < _NEW_HEIGHT * max(sizes[:start], default=0.0):
        return None  # it was this high before: noise around a small value
    recent = rising[-4:]
    rates = [math.log(b / a) for a, b in itertools.pairwise(recent)]
    is_accelerating = len(rates) >= _FEWEST and min(rates) > _DOUBLING
    if min(rates[-2:]) < _STEADY * max(rates[-2:]) and not is_accelerating:
        return None  # a single jump: an unusual batch
    rate = sum(rates) / len(rates)
    left = every * math.log(limit / recent[-1]) / rate
    if left > _HORIZON:
        return None
    return Climb(rising[0], rising[-1], every * (len(rising) - 1), left)

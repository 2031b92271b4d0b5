"""Detects an operator's value that approaches a limit of its dtype, and estimates the steps left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

__all__ = ["NEAR", "steps_left"]

NEAR = 0.5
"""From this share of the way on, in orders of magnitude, an approach counts: values of ordinary size are far below it."""
_FEWEST = 4
_STEADY = 0.3
"""The minimum ratio of the last two rates: a single jump is an unusual batch."""
_STEADY_PACE = 0.9
_REACH = 2.0
"""A trend is continued for so many times the steps over which it has risen without a pause."""


def steps_left(points: Collection[tuple[int, float]]) -> float | None:
    """The steps until the limit, or None if these points, (step, share of the way), show no steady approach.

    The share is 0 for a value of 1 and 1 at the limit, in orders of magnitude: an exponential climb is a straight line.

    >>> steps_left([(40, 0.5), (41, 0.6), (42, 0.7), (43, 0.8)])
    2.0
    >>> steps_left([(40, 0.5), (41, 0.7), (42, 0.6), (43, 0.8)]) is None
    True
    >>> steps_left([(40, 0.5), (41, 0.501), (42, 0.502), (43, 0.9)]) is None
    True
    """
    known = list(points)
    if not known or not NEAR <= known[-1][1] < 1:
        return None
    start = len(known) - 1
    while start > 0 and known[start - 1][1] < known[start][1]:
        start -= 1
    rising = known[start:]
    if len(rising) < _FEWEST or rising[-1][1] <= max(share for _, share in known[:-1]):
        return None
    before, now = ((b - a) / (m - n) for (n, a), (m, b) in itertools.pairwise(rising[-3:]))
    if min(before, now) < _STEADY * max(before, now):
        return None
    left_to_rise, num_steps = 1 - rising[-1][1], rising[-1][0] - rising[-3][0]
    if _STEADY_PACE * before > now and now * num_steps / 2 < left_to_rise * math.log(before / now):
        return None  # if it goes on slowing down like this, it ends before the limit
    left = left_to_rise * num_steps / (rising[-1][1] - rising[-3][1])
    return round(left, 6) if left <= _REACH * (rising[-1][0] - rising[0][0]) else None

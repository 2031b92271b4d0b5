"""Detects spikes of loss and gradient norm against a robust baseline of finite values."""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass

__all__ = ["Spike", "SpikeWatch"]

_MAD_TO_SIGMA = 1.4826
_REFRESH = 16
_WINDOW = 64
_LEAST = 16
"""The fewest values that make a baseline."""
_WARN_AT = 6.0
_ACT_AT = 12.0
"""Robust standard deviations above the usual."""
_SMALL = 1e-3
"""Values below this share of the initial level are too small to matter."""
_LARGEST = sys.float_info.max  # as a limit it admits every number but Inf
_LOWEST = -_LARGEST


@dataclass(frozen=True)
class Spike:
    """A value far above the usual."""

    step: int
    value: float
    usual: float
    """The median of the window."""
    times: float
    """How many robust standard deviations it is above the median."""
    is_alarm: bool
    """Whether it is large enough to act on, not only to warn."""
    is_growing: bool = False
    """Whether it was detected by its growth from step to step."""

    def describe(self, name: str) -> str:
        """A line of text for the user.

        >>> Spike(5, 2.39, 0.24, 30.0, True).describe("gradient norm")
        'the gradient norm is 2.39, usual is 0.24 (30 robust deviations above)'
        """
        if self.is_growing:
            return f"the {name} is {self.value:.4g} and has more than doubled twice in a row"
        return (
            f"the {name} is {self.value:.4g}, usual is {self.usual:.4g} "
            f"({self.times:.3g} robust deviations above)"
        )


class SpikeWatch:
    """Compares values with the median and the MAD of the last finite ones.

    Before there is a baseline, a value that more than doubles twice in a row counts as a spike. A value is judged before it
    enters the window. NaN and Inf never enter, because they would make every later comparison useless; the step check
    handles them.

    >>> watch = SpikeWatch()
    >>> seen = [watch.note(i, 0.24 + 0.01 * (i % 3)) for i in range(20)]
    >>> watch.note(20, float("nan")) is None and watch.note(21, 0.947).is_alarm
    True

    A training that has come down to 1e-12 leaps about; that is no spike while it stays far below its start.

    >>> seen = [watch.note(i, 1e-12) for i in range(22, 90)]
    >>> watch.note(90, 1e-6) is None and watch.note(91, 0.9).is_alarm
    True
    """

    def __init__(self, ratio: float = 3.0) -> None:
        self.ratio = ratio
        """The minimum ratio to the usual: small batches have heavy tails."""
        self._values: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._usual = 0.0
        self._spread = 0.0
        self.floor = _LOWEST
        """Values below this are small, relative to the start of the run."""
        self._limit = _LARGEST
        self._quiet = _LARGEST
        self._num_until_refresh = _LEAST
        self._is_inside = False

    def is_quiet(self, step: int, value: float) -> bool:
        """The fast path for a value that cannot be a spike; otherwise call `note`.

        >>> watch = SpikeWatch()
        >>> watch.is_quiet(0, 1.0), watch.is_quiet(1, 1.9), watch.is_quiet(2, 3.9)
        (True, True, False)
        """
        if not _LOWEST <= value <= self._quiet or self._is_inside:
            return False
        self._values.append((step, value))  # as `_enter`, without a call in every healthy step
        self._num_until_refresh -= 1
        if self._num_until_refresh <= 0:
            self._refresh()
        self._quiet = 2 * value if 0 < 2 * value < self._limit else self._limit
        return True

    def _enter(self, step: int, value: float) -> None:
        self._values.append((step, value))
        self._num_until_refresh -= 1
        if self._num_until_refresh <= 0:
            self._refresh()
        # A value that has not more than doubled is not growing.
        self._quiet = 2 * value if 0 < 2 * value < self._limit else self._limit

    def note(self, step: int, value: float) -> Spike | None:
        """Judge this value, then add it to the window if it is finite."""
        if not math.isfinite(value):
            return None
        spike = None
        if value > self._limit:
            times = (value - self._usual) / self._spread
            spike = Spike(step, value, self._usual, times, times > _ACT_AT)
        elif self._is_growing(value):
            usual = self._usual if self._limit < _LARGEST else self._values[-2][1]
            spike = Spike(step, value, usual, value / usual, False, is_growing=True)
        self._enter(step, value)
        return spike

    def is_rising(self) -> bool:
        """Whether the last three values rise to a relevant size."""
        values = self._values
        if len(values) < 3 or values[-1][1] < self.floor:
            return False
        return values[-3][1] < values[-2][1] < values[-1][1]

    def recent(self, number: int = 24) -> list[float]:
        """The last values, oldest first."""
        return [v for _, v in list(self._values)[-number:]]

    def is_first(self, spike: Spike | None) -> bool:
        """Whether this spike is the first of its episode."""
        was, self._is_inside = self._is_inside, spike is not None
        return spike is not None and not was

    def forget_after(self, step: int) -> None:
        """Forget the values from this step on, after a rollback."""
        kept = [pair for pair in self._values if pair[0] < step]
        self._values.clear()
        self._values.extend(kept)
        self._is_inside = False
        self._refresh()
        self._quiet = self._limit

    def _is_growing(self, value: float) -> bool:
        if len(self._values) < 2:
            return False
        older, last = self._values[-2][1], self._values[-1][1]
        if not (older > 0 and 2 * older < last and 2 * last < value and 8 * older <= value):
            return False
        if value < self.floor:
            return False
        return value > max(v for _, v in self._values)

    def _refresh(self) -> None:
        self._num_until_refresh = _REFRESH
        if len(self._values) < _LEAST:
            self._limit = _LARGEST
            self._num_until_refresh = _LEAST - len(self._values)
            return
        values = sorted([v for _, v in self._values])
        usual = self._usual = _median(values)
        # The values are sorted, so their distances are two sorted runs, which the sort only merges.
        mad = _median(sorted([abs(v - usual) for v in values]))
        # A quiet run has almost no spread; a tenth of its level is never a spike by itself.
        self._spread = max(_MAD_TO_SIGMA * mad, 0.1 * abs(self._usual), 1e-12)
        if self.floor == _LOWEST:
            self.floor = _SMALL * abs(self._usual)
        limit = self._usual + _WARN_AT * self._spread
        self._limit = max(limit, self.ratio * self._usual, self.floor)


def _median(values: list[float]) -> float:
    """The median of sorted values."""
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2

"""The time budget of an investigation.

Measured in this thread's own computing time: on a machine that others keep busy the same step gets the same answer.
"""

from __future__ import annotations

import time

__all__ = ["Budget"]

_WAITING = 10.0
"""So many times as long by the clock, for what waits without computing."""


class Budget:
    """Seconds of computing, begun when it is made.

    >>> Budget(60.0).is_over, Budget(0.0).is_over
    (False, True)
    """

    def __init__(self, seconds: float) -> None:
        self._computed = time.thread_time() + seconds
        self._waited = time.perf_counter() + _WAITING * seconds

    @property
    def is_over(self) -> bool:
        return time.thread_time() >= self._computed or time.perf_counter() >= self._waited

"""The time budget of an investigation.

It counts the CPU time of this thread, so that a busy machine does not change the result.
"""

from __future__ import annotations

import time

__all__ = ["Budget"]

_WAITING = 10.0
"""The limit on wall-clock time, as a multiple of the budget, for code that waits."""


class Budget:
    """A budget of CPU seconds, which starts when it is made.

    >>> Budget(60.0).is_over, Budget(0.0).is_over
    (False, True)
    """

    def __init__(self, seconds: float) -> None:
        self._computed = time.thread_time() + seconds
        self._waited = time.perf_counter() + _WAITING * seconds

    @property
    def is_over(self) -> bool:
        return time.thread_time() >= self._computed or time.perf_counter() >= self._waited

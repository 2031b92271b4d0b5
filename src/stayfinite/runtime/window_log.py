"""The windows applied since the last snapshot, for time travel."""

from __future__ import annotations

from .batches import batch_bytes
from .window import Window

__all__ = ["WindowLog"]

_MAX_BYTES = 1 << 26
_SMALL_BYTES = 1 << 24
_NUM_RECENT = 4
_NUM_BEFORE_ANEW = 8
"""A snapshot that only the clock asks for comes so many steps after the last one."""
_MAX_RISE = 10.0


class WindowLog(list[Window]):
    """The windows in order. The size of their batches is estimated from the first and every 64th."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.recent: list[Window] = []
        """The last steps before the snapshot, on which a change of the source is compared."""
        self._most = most
        self._window_bytes = 0
        self._num_quiet = 0
        """This many more windows are added before the clock is read."""
        self._stale: list[Window] = []
        self._earlier: list[float] = []
        """The last losses before the snapshot."""

    def add(self, window: Window) -> bool:
        """Add a window; returns False if it is time to read the clock: in every eighth step, or when this is full."""
        self.append(window)
        if self._stale:
            self._stale.pop()
        self._num_quiet -= 1
        return self._num_quiet > 0 or self._goes_on(window)

    def _goes_on(self, window: Window) -> bool:
        """`add` for the first window and every eighth."""
        number = len(self)
        if number == 1 or number % 64 == 0:
            self._window_bytes = sum(batch_bytes(b.value) for b in window.batches)
        self._num_quiet = min(8 - number % 8, self._capacity - number)
        return number % 8 > 0 and not self.is_full()

    def clear(self) -> None:
        super().clear()
        self._num_quiet = 0

    @property
    def _capacity(self) -> int:
        """How many windows of this size fit."""
        return min(self._most, 1 + _MAX_BYTES // max(1, self._window_bytes))

    def is_full(self, num_more: int = 0) -> bool:
        return len(self) + num_more >= self._capacity

    def room(self, is_anew: bool = False) -> int:
        """How many more steps fit; `is_anew`: if it starts again with this one."""
        return self._capacity if is_anew else max(1, self._capacity - 1 - len(self))

    def begin_anew(self) -> None:
        """Start again after a snapshot.

        Small windows are released one by one as new ones come: releasing all of them at once would let Python's
        garbage collector run, which takes milliseconds with torch loaded.
        """
        is_small = len(self) * self._window_bytes < _SMALL_BYTES
        if self and is_small:
            self.recent = self[-_NUM_RECENT:]
        self._earlier = self._losses()[-_NUM_BEFORE_ANEW:]
        self._stale = list(self) if is_small else []
        self.clear()

    def release_all(self) -> None:
        """Keep no batch alive: the training was rolled back."""
        self._earlier.clear()
        self._stale.clear()

    def forget(self) -> None:
        """Drop everything: the training is over."""
        self.clear()
        self.recent.clear()
        self.release_all()

    def may_begin_anew(self, is_routine: bool) -> bool:
        """Whether a newer snapshot may replace the one that this log began with. Memory has the last word.

        A training that diverges needs the older one. Whether a step has ruined the weights shows only in the losses that
        follow, so they must not rise steeply, and `is_routine`, a snapshot that only the clock asks for, waits for some.
        """
        if self.is_full():
            return True
        has_waited = not is_routine or len(self) >= _NUM_BEFORE_ANEW
        return has_waited and not self._is_diverging()

    def _is_diverging(self) -> bool:
        losses = self._earlier + self._losses()
        if len(losses) < 2:
            return False
        first = sorted(losses[: len(losses) // 2])
        usual = first[len(first) // 2]
        return losses[-1] - usual > _MAX_RISE * max(abs(usual), 1e-3)

    def _losses(self) -> list[float]:
        """Only losses that were read already, so that nothing waits for a device."""
        return [w.loss for w in self if w.loss is not None]

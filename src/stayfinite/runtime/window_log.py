"""The windows applied since the last snapshot, for time travel."""

from __future__ import annotations

from .batches import batch_bytes
from .window import Window

__all__ = ["WindowLog"]

_MAX_BYTES = 1 << 26
_SMALL_BYTES = 1 << 24
_NUM_RECENT = 4
_LEAP = 10.0


class WindowLog(list[Window]):
    """In their order; how many bytes their batches are is an estimate from the first and every 64th."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.recent: list[Window] = []
        """The last steps before the snapshot, to compare a change of the source with."""
        self._most = most
        self._num_bytes = 0
        self._num_quiet = 0
        """After so many more it is asked again."""
        self._stale: list[Window] = []

    def add(self, window: Window) -> bool:
        """Whether nobody has to ask for the time: every eighth step it is asked for, and when this is full."""
        self.append(window)
        if self._stale:
            self._stale.pop()
        self._num_quiet -= 1
        return self._num_quiet > 0 or self._goes_on(window)

    def _goes_on(self, window: Window) -> bool:
        """`add` for the first one and every eighth."""
        number = len(self)
        if number == 1 or number % 64 == 0:
            size = sum(batch_bytes(b.value) for b in window.batches)
            self._num_bytes = (number + 64) * size
        if self._num_bytes > _MAX_BYTES:
            return False
        self._num_quiet = min(8 - number % 8, self._most - number)
        return number % 8 > 0 and number < self._most

    def clear(self) -> None:
        super().clear()
        self._num_quiet = 0

    def is_full(self, num_more: int = 0) -> bool:
        return len(self) + num_more >= self._most or self._num_bytes > _MAX_BYTES

    def room(self, is_anew: bool = False) -> int:
        """After how many more steps it is full; `is_anew`: it begins anew with this one."""
        if is_anew:
            return self._most
        return max(1, self._most - 1 - len(self)) if self._num_bytes <= _MAX_BYTES else 1

    def begin_anew(self) -> None:
        """A snapshot was taken. Small windows are let go one by one as new ones come: Python looks for
        garbage whenever more has been made than let go, and with torch loaded such a look takes
        milliseconds."""
        is_small = self._num_bytes < _SMALL_BYTES
        if self and is_small:
            self.recent = self[-_NUM_RECENT:]
        self._stale = list(self) if is_small else []
        self.clear()
        self._num_bytes = 0

    def let_go(self) -> None:
        """The training went back: nothing of it is to be kept alive."""
        self._num_bytes = 0
        self._stale.clear()

    def runs_away(self) -> bool:
        """Whether the loss leaps: then the state before is the one to go back to, while it can be.

        Only figures that have been read already count; nothing waits for the device here.
        """
        losses = [w.loss for w in self if w.loss is not None]
        if len(losses) < 2:
            return False
        return losses[-1] - losses[0] > _LEAP * max(abs(losses[0]), 1e-3)

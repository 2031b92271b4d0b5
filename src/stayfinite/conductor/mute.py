"""What a loop prints while its body is run again for us alone has been said already."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from ..observe.turns import loop_lines

__all__ = ["muted"]


class _Muted:
    """Swallows what comes from inside a loop; what comes from elsewhere goes through."""

    def __init__(self, out: Any, waiting: list[FrameType]) -> None:
        self._out = out
        self._loops = [(f, lines) for f in waiting if (lines := loop_lines(f)) is not None]

    def write(self, text: str) -> int:
        if self._is_left():
            self._out.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._out.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def _is_left(self) -> bool:
        """The loop has ended meanwhile, its functions have returned, or another thread is speaking."""
        running = set()
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        # A function that only fetched the batches may have returned; the loop round it counts then.
        still = [(f, lines) for f, lines in self._loops if id(f) in running]
        if not still:
            return bool(self._loops)
        return still[0][0].f_lineno not in still[0][1]


@contextlib.contextmanager
def muted(waiting: list[FrameType]) -> Iterator[None]:
    """No output of a loop's body; `waiting`: the functions that wait for its batch, innermost first."""
    out = sys.stdout
    with contextlib.redirect_stdout(_Muted(out, waiting)):
        yield

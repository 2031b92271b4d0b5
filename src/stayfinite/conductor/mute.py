"""What a loop prints while its body is run again for us alone has been said already."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .body import loop_lines

__all__ = ["muted"]


class _Muted(io.TextIOBase):
    """Swallows what comes from inside a loop; what comes from elsewhere goes through."""

    def __init__(self, out: Any, loop: FrameType | None) -> None:
        self._out = out
        self._loop = loop
        self._lines = loop_lines(loop) if loop is not None else None

    def write(self, text: str) -> int:
        if self._is_left():
            self._out.write(text)
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def _is_left(self) -> bool:
        """The loop has ended meanwhile, its function has returned, or another thread is speaking."""
        if self._loop is None:
            return False
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame is not self._loop:
            frame = frame.f_back
        if frame is None:
            return True
        return self._lines is not None and frame.f_lineno not in self._lines


@contextlib.contextmanager
def muted(loop: FrameType | None) -> Iterator[None]:
    """No output of this loop's body; `loop` is the function that it runs in."""
    out = sys.stdout
    with contextlib.redirect_stdout(_Muted(out, loop)):
        yield

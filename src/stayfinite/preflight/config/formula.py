"""The line of a schedule's own formula at which its rate turns bad."""

from __future__ import annotations

import linecache
import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor

from ...locate.frames import is_user_file
from ...records import Location

__all__ = ["line_of"]


def line_of(run: Callable[[], object], is_bad: Callable[[Any], bool]) -> Location | None:
    """Run it, and return the user's first line with a bad number; None if there is none.

    >>> def rate(step):
    ...     left = step - 3
    ...     return left**0.5
    >>> where = line_of(lambda: rate(1), lambda x: isinstance(x, complex))
    >>> where.line == rate.__code__.co_firstlineno + 2
    True
    """
    watch = _Watch(is_bad)
    before = sys.gettrace()
    sys.settrace(watch.enter)
    try:
        run()
    except Exception:
        watch.is_over = True
    finally:
        sys.settrace(before)
    if watch.found is None:
        return None
    file, line = watch.found
    return Location(
        file=file, line=line, source=linecache.getline(file, line).strip(), method="none"
    )


class _Watch:
    """Follows the user's own frames, line by line."""

    def __init__(self, is_bad: Callable[[Any], bool]) -> None:
        self.found: tuple[str, int] | None = None
        self.is_over = False
        self._is_bad = is_bad
        self._lines: dict[FrameType, int] = {}
        self._bad: dict[FrameType, set[str]] = {}

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.found is not None or not is_user_file(frame.f_code.co_filename):
            return None
        self._bad[frame] = self._bad_names(frame)
        self._lines[frame] = frame.f_lineno
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        line = self._lines.get(frame, frame.f_lineno)
        if self.found is None and (
            event == "exception"
            or (event == "line" and self._bad_names(frame) - self._bad[frame])
            or (event == "return" and _any(arg, self._is_bad))
        ):
            self.found = frame.f_code.co_filename, line
        self._lines[frame] = frame.f_lineno
        return self._step

    def _bad_names(self, frame: FrameType) -> set[str]:
        return {n for n, v in frame.f_locals.items() if _any(v, _is_no_number)}


def _any(value: Any, is_bad: Callable[[Any], bool]) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_any(v, is_bad) for v in value)
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, complex)):
        return False
    return is_bad(value)


def _is_no_number(value: Any) -> bool:
    return isinstance(value, complex) or not math.isfinite(value)

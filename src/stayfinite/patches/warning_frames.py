"""Lets warnings and log records name the line that they would name without us.

`warnings.warn(…, stacklevel=2)` inside a patched function names its caller, and filters and "once for each line" go by that
name. With our wrapper in between, the caller would be a line of ours: deprecation warnings would no longer be shown, filters
of the script would no longer match. `warnings` and `logging` pass by the frames of the import system, which they know by the
file name of the code. So our wrappers have such a file name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TypeVar

__all__ = ["for_each_skipped", "is_skipped_by_warnings", "skipped_by_warnings"]

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MARK = " (as importlib._bootstrap)"
_made: dict[CodeType, CodeType] = {}
_others: list[Callable[[CodeType], object]] = []

F = TypeVar("F")


def skipped_by_warnings(function: F) -> F:
    """Give a function of ours, and those inside it, a file name by which `stacklevel` passes their frames.

    >>> import warnings
    >>> def old():
    ...     warnings.warn("old", stacklevel=2)
    >>> skipped_by_warnings(old) is old  # not a function of ours: unchanged
    True
    """
    if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_OWN):
        function.__code__ = _renamed(function.__code__)
    return function


def is_skipped_by_warnings(file: str) -> bool:
    """Whether a frame with this file name belongs to such a function."""
    return file.endswith(_MARK)


def for_each_skipped(do: Callable[[CodeType], object]) -> None:
    """Call `do` with the code of each such function, also of those to come."""
    _others.append(do)
    for code in list(_made.values()):
        do(code)


def _renamed(code: CodeType) -> CodeType:
    if code.co_filename.endswith(_MARK):
        return code
    made = _made.get(code)
    if made is None:
        inside = (_renamed(c) if isinstance(c, CodeType) else c for c in code.co_consts)
        made = code.replace(co_filename=code.co_filename + _MARK, co_consts=tuple(inside))
        _made[code] = made
        for do in _others:
            do(made)
    return made

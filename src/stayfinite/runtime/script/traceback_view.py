"""Removes our own frames from the script's traceback."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from ...patches.warning_frames import is_skipped_by_warnings
from ...saying import say

__all__ = ["show"]

_STDLIB = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (_STDLIB + "site-packages", _STDLIB + "dist-packages")
_OWN = str(Path(__file__).resolve().parents[2])


def show(error: BaseException) -> None:
    """Print the exception, with the script's own `sys.excepthook` if it has set one."""
    sys.stdout.flush()
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, _first_of_script(error.__traceback__))
        return
    shown = traceback.TracebackException.from_exception(error)
    seen: traceback.TracebackException | None = shown
    while seen is not None:
        seen.stack = _without_us(seen.stack)
        seen = seen.__cause__ or seen.__context__
    say("".join(shown.format()).rstrip("\n"))


def _first_of_script(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and _is_ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return tb


def _without_us(stack: traceback.StackSummary) -> traceback.StackSummary:
    """Leave out our frames, and those of the standard library that work for us when a Ctrl-C arrives.

    A frame below one of our wrappers is that of the function which the script has called.
    """
    kept, is_within = [], False
    for frame in stack:
        if _is_ours(frame.filename):
            is_within = not is_skipped_by_warnings(frame.filename)
            continue
        is_within = is_within and _is_stdlib(frame.filename)
        if not is_within:
            kept.append(frame)
    return traceback.StackSummary.from_list(kept)


def _is_ours(file: str) -> bool:
    path = os.path.abspath(file)
    is_demo = path.startswith(os.path.join(_OWN, "demo") + os.sep)
    is_runner = file.startswith("<frozen") or os.path.basename(file) == "runpy.py"
    return (path.startswith(_OWN + os.sep) and not is_demo) or is_runner


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and not file.startswith(_PACKAGES)

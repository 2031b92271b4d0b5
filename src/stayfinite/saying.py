"""Prints to standard error, even if the script has replaced it.

`print` is not used, because a script may have replaced it. A closed or incomplete stream must not end a
training, so errors are ignored.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

__all__ = ["flush_output", "is_terminal", "say"]


def say(text: str) -> None:
    """Print one line to standard error, in one write."""
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(Exception):
        stream.write(f"{text}\n")
        _flush(stream)


def flush_output() -> None:
    """Flush standard output, so that the script's output comes before our next message."""
    with contextlib.suppress(Exception):
        _flush(sys.stdout)


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    isatty = getattr(sys.stderr, "isatty", None)
    with contextlib.suppress(Exception):
        return isatty is not None and bool(isatty())
    return False


def _flush(stream: Any) -> None:
    flush = getattr(stream, "flush", None)
    if flush is not None:
        flush()

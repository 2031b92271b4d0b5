"""Prints to standard error, even if the script has replaced it.

Not by `print`, which a script may have replaced, nor by methods that a stream of its own may lack; a
stream that is gone is no reason for a training to end.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

__all__ = ["flush_output", "is_terminal", "say"]


def say(text: str) -> None:
    """The text and a line's end, in one piece."""
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(Exception):
        stream.write(f"{text}\n")
        _flush(stream)


def flush_output() -> None:
    """What the script has printed so far comes before what is said next."""
    with contextlib.suppress(Exception):
        _flush(sys.stdout)


def is_terminal() -> bool:
    """Whether somebody reads standard error in a terminal."""
    asked = getattr(sys.stderr, "isatty", None)
    with contextlib.suppress(Exception):
        return asked is not None and bool(asked())
    return False


def _flush(stream: Any) -> None:
    flush = getattr(stream, "flush", None)
    if flush is not None:
        flush()

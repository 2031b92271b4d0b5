"""Prints to standard error, even if the script has replaced it.

`print` is not used, because a script may have replaced it. A closed or incomplete stream must not end a
training, so errors are ignored.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["flush_output", "is_terminal", "say"]


def say(text: str) -> None:
    """Print one line to standard error, in one write."""
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.ExitStack() as bars:
        with contextlib.suppress(Exception):
            bars.enter_context(_without_bars(stream))
        with contextlib.suppress(Exception):
            stream.write(f"{text}\n")
            _flush(stream)


@contextlib.contextmanager
def _without_bars(stream: Any) -> Iterator[None]:
    """Take the progress bars of tqdm off the terminal's line, as `tqdm.write` does, and draw them again."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if not getattr(tqdm, "_instances", None):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(tqdm.external_write_mode(file=stream))  # type: ignore[union-attr]
        yield
        with contextlib.suppress(Exception):
            stack.close()


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

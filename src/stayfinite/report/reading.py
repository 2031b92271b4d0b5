"""Reads untrusted files: regular files only, with limits, without tracebacks."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UsageError
from ..records import Incident

__all__ = [
    "MAX_SECONDS",
    "Clock",
    "is_regular",
    "open_regular",
    "printable",
    "read_incident",
    "read_json",
]

_MAX_INCIDENT = 32 << 20
MAX_SECONDS = 10.0
"""The default CPU time for reading a log."""


class Clock:
    """The CPU time that is left for reading; independent of the load of the machine.

    >>> Clock(0.0).is_over, Clock(60.0).is_over
    (True, False)
    """

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._end = time.process_time() + max_seconds

    @property
    def is_over(self) -> bool:
        return time.process_time() >= self._end

    @property
    def message(self) -> str:
        return f"stopped after {self.max_seconds:g} s: limit_exceeded; the rest of the log was not read"


def printable(text: str) -> str:
    r"""Remove terminal control characters from a text; line breaks stay.

    >>> printable("a\x1b[2J")
    'a\\x1b[2J'
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def is_regular(path: Path) -> bool:
    """Whether this is a regular file: opening a pipe could block."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; raises an OSError for anything else."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_json(path: Path, max_bytes: int) -> Any:
    """Read JSON from a file; None if that is not possible."""
    try:
        with open_regular(path) as handle:
            raw = handle.read(max_bytes + 1)
        return json.loads(raw) if len(raw) <= max_bytes else None
    except (OSError, ValueError, RecursionError):
        return None


def read_incident(path: Path) -> tuple[Incident, Path]:
    """The incident in a folder (or its `incident.json`), and the folder."""
    folder = path.parent if path.name == "incident.json" else path
    file = folder / "incident.json"
    try:
        with open_regular(file) as handle:
            raw = handle.read(_MAX_INCIDENT + 1)
    except OSError as e:
        if folder.is_dir() and not file.exists():
            raise UsageError(
                f"{printable(str(folder))} is no incident: it holds no incident.json"
            ) from e
        raise UsageError(f"{printable(str(folder))} is no incident: {e.strerror or e}") from e
    if len(raw) > _MAX_INCIDENT:
        raise UsageError(f"{printable(str(file))} has more than {_MAX_INCIDENT >> 20} MB")
    try:
        return Incident.from_json(raw.decode("utf-8")), folder
    except (ValueError, RecursionError, TypeError, OverflowError, AttributeError) as e:
        raise UsageError(f"{printable(str(file))}: {printable(f'{e!s:.300}')}") from e

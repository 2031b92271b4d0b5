"""Writes files completely or not at all: temporary file, fsync, rename."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["atomic_path"]

_MARK = ".stayfinite-part-"
_STALE_SECONDS = 3600.0


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A context with a temporary path whose contents become `path` in one step, or not at all.

    The temporary file has the same name as the final one, because archives store it, and is in a hidden folder next to it. If the
    process is killed, the old file is unchanged.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_path(folder / "a.txt") as part:
    ...     _ = part.write_text("whole")
    >>> (folder / "a.txt").read_text(), len(os.listdir(folder))
    ('whole', 1)
    """
    final = Path(os.path.realpath(path))
    prefix = f"{_MARK}{final.name[:80]}-"
    _clear_old(final.parent, prefix)
    room = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    part = room / final.name
    try:
        yield part
        _sync(part)
        os.replace(part, final)
        _sync_folder(final.parent)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _clear_old(folder: Path, prefix: str) -> None:
    """Remove old leftovers of killed processes; recent ones may still be in use."""
    for old in folder.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(old, ignore_errors=True)


def _sync(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    # Not every file system can open a folder; the rename has happened in any case.
    with contextlib.suppress(OSError):
        _sync(folder)

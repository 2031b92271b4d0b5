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
    """A place to write to; what is written there becomes `path` in one step, or not at all.

    The temporary file has the very name of the final one (archives write it into themselves), in a
    hidden folder beside it. A process that is killed leaves that folder and the old file untouched.

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
    """What a killed process left behind long ago; younger ones may still be written to."""
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
    # Not every file system lets a folder be opened; the rename itself has happened all the same.
    with contextlib.suppress(OSError):
        _sync(folder)

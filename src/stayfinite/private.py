"""Creates folders and files that only their owner can read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["make_folder", "open_private"]

_FOLDER, _FILE = 0o700, 0o600


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its missing parents, readable for the owner only.

    The permissions of existing folders are not changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     made = make_folder(f"{home}/run/incidents")
    ...     oct(made.stat().st_mode & 0o777), oct(made.parent.stat().st_mode & 0o777)
    ('0o700', '0o700')
    """
    folder = Path(path)
    missing = []
    here = folder
    while not here.exists() and here != here.parent:
        missing.append(here)
        here = here.parent
    for step in reversed(missing):
        step.mkdir(mode=_FOLDER, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    return folder


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for `open` that makes new files readable for the owner only."""
    return os.open(path, flags, _FILE)

"""`os.scandir` for a folder that exists in two places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

__all__ = ["Entries", "Entry"]


class Entry:
    """A directory entry with the script's path, wherever its file is."""

    def __init__(self, entry: Any, folder: str) -> None:
        self._entry = entry
        self.name: str = entry.name
        self.path = os.path.join(folder, entry.name)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)  # is_dir, is_file, is_symlink, stat, inode


class Entries:
    """An iterator over entries that is a context manager too."""

    def __init__(self, found: list[Entry]) -> None:
        self._left = iter(found)

    def __iter__(self) -> Iterator[Entry]:
        return self._left

    def __next__(self) -> Entry:
        return next(self._left)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = iter(())

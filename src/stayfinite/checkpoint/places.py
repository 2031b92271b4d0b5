"""One interface for local paths and remote stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from . import files
from .files import MappedFile
from .limits import FileFault
from .remote import RemoteFile, RemotePath, is_remote, remote_path

__all__ = ["Place", "identity", "list_folder", "open_source", "place", "read_head", "read_small"]

Place: TypeAlias = Path | RemotePath


def place(text: str) -> Place:
    """The path that a report names."""
    return remote_path(text) if is_remote(text) else Path(text)


def identity(path: Place) -> str:
    """Equal for two spellings of the same place."""
    return str(path) if isinstance(path, RemotePath) else os.path.abspath(path)


def open_source(path: Place) -> MappedFile:
    """The file, mapped or fetched as it is read."""
    return RemoteFile(path) if isinstance(path, RemotePath) else MappedFile(path)


def list_folder(path: Place) -> list[Place]:
    """The contents of a folder in any order; raises an OSError if it cannot be listed."""
    if isinstance(path, RemotePath):
        return list(path.children())
    return [path / name for name in os.listdir(path)]


def read_head(path: Place, count: int) -> bytes:
    """The first bytes of a regular file; never blocks on a pipe."""
    if isinstance(path, RemotePath):
        return path.read(count)
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(fd, "rb") as handle:
        return handle.read(count) or b""


def read_small(path: Place, at_most: int) -> bytes:
    """The contents of a regular file up to this size."""
    if isinstance(path, RemotePath):
        if path.stat().st_size > at_most:
            raise FileFault("limit_exceeded", f"it has {path.stat().st_size:,} bytes")
        return path.read(at_most)
    return files.read_small(path, at_most)

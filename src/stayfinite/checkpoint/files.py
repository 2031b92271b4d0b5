"""Bytes of a file without reading them: mapped, bounded, never written."""

from __future__ import annotations

import mmap
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from .limits import FileFault

__all__ = ["Blob", "MappedFile", "map_temporary"]


class MappedFile:
    """A file mapped into memory for reading.

    The mapping is copy-on-write, so nothing that is done with it can reach the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise FileFault("unreadable", "not a regular file (a device, pipe or socket)")
        self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.size = os.fstat(self._fd).st_size
        self._map: mmap.mmap | None = None
        self.view = memoryview(b"")
        if self.size:
            try:
                self._map = _mapped(self._fd, self.size)
            except (OSError, ValueError):
                os.close(self._fd)
                raise
            self.view = memoryview(self._map)

    def check_length(self) -> None:
        """Touching a page that another process has just cut off would kill this one."""
        if os.fstat(self._fd).st_size < self.size:
            raise FileFault("truncated", "the file became shorter while it was being scanned")

    def close(self) -> None:
        os.close(self._fd)
        try:
            self.view.release()
            if self._map is not None:
                self._map.close()
        except BufferError:
            pass  # a tensor still looks at it; the mapping goes with the last of them

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 does not name it


def _mapped(fd: int, size: int) -> mmap.mmap:
    """Copy-on-write. Nobody writes, so no memory is set aside for it: a file larger than the
    machine's memory can be mapped, too."""
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return mmap.mmap(fd, size, access=mmap.ACCESS_COPY)


class Blob:
    """The bytes of one storage: a piece of the mapped file, or something to inflate on demand."""

    __slots__ = ("_inflate", "_view", "file", "is_big_endian", "size")

    def __init__(
        self,
        view: memoryview | None,
        size: int,
        *,
        file: MappedFile | None = None,
        is_big_endian: bool = False,
        inflate: Callable[[], memoryview] | None = None,
    ) -> None:
        self._view = view
        self._inflate = inflate
        self.size = size
        self.file = file
        self.is_big_endian = is_big_endian

    def open(self) -> memoryview:
        """The bytes. Inflated ones live only as long as the caller keeps them."""
        if self._view is not None:
            return self._view
        assert self._inflate is not None
        return self._inflate()

    def check_length(self) -> None:
        if self.file is not None:
            self.file.check_length()


def map_temporary(write: Callable[[Callable[[bytes], object]], None]) -> memoryview:
    """What `write` produces, in a nameless temporary file instead of memory."""
    with tempfile.TemporaryFile() as handle:
        write(handle.write)
        handle.flush()
        size = handle.tell()
        if size == 0:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_COPY))

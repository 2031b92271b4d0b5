"""Memory-mapped access to a file: bounded, read-only."""

from __future__ import annotations

import mmap
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from .limits import FileFault

__all__ = ["Blob", "MappedFile", "Region", "map_temporary", "read_small"]


class MappedFile:
    """A file mapped into memory for reading.

    The mapping is copy-on-write, so the file cannot be changed. Remote files (`remote`) have the same interface: `need` fetches a
    range, `done` releases it.
    """

    is_remote = False
    block_bytes = 64 << 20
    """The size of a block: large enough for the full memory bandwidth."""

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

    def need(self, start: int, end: int) -> None:
        """Called before bytes are read."""
        self.check_length()

    def check_length(self) -> None:
        """Reading a page that another process has truncated would kill this process."""
        if os.fstat(self._fd).st_size < self.size:
            raise FileFault("truncated", "the file became shorter while it was being scanned")

    def done(self, start: int, end: int) -> None:
        """Release the bytes that were needed."""

    def close(self) -> None:
        os.close(self._fd)
        try:
            self.view.release()
            if self._map is not None:
                self._map.close()
        except BufferError:
            pass  # a tensor still uses it; the mapping ends with the last of them

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Region:
    """A range of bytes that is read like a file: a whole file, a part of one, or bytes in memory."""

    __slots__ = ("base", "file", "size", "view")

    def __init__(
        self,
        view: memoryview,
        file: MappedFile | None = None,
        base: int = 0,
        size: int | None = None,
    ) -> None:
        self.view = view
        """The whole mapping, in which this region begins at `base`."""
        self.file = file
        self.base = base
        self.size = len(view) - base if size is None else size

    @classmethod
    def of(cls, file: MappedFile) -> Region:
        return cls(file.view, file, 0, file.size)

    def part(self, start: int, end: int) -> Region:
        """The bytes from `start` to `end`, both within this region."""
        return Region(self.view, self.file, self.base + start, min(end, self.size) - start)

    def read(self, start: int, end: int) -> bytes:
        """A copy, which is shorter at the end of the region."""
        start, end = self.base + start, self.base + min(end, self.size)
        if self.file is None:
            return bytes(self.view[start:end])
        self.file.need(start, end)
        try:
            return bytes(self.view[start:end])
        finally:
            self.file.done(start, end)

    @contextmanager
    def held(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes themselves, within the `with` block."""
        start, end = self.base + start, self.base + min(end, self.size)
        if self.file is not None:
            self.file.need(start, end)
        try:
            yield self.view[start:end]
        finally:
            if self.file is not None:
                self.file.done(start, end)

    def blob(self, start: int, size: int, *, is_big_endian: bool = False) -> Blob:
        """The bytes of a storage."""
        return Blob(
            self.view, size, start=self.base + start, file=self.file, is_big_endian=is_big_endian
        )


_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 does not name it


def _mapped(fd: int, size: int) -> mmap.mmap:
    """Map copy-on-write without reserving memory, so that a file larger than the memory can be mapped."""
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        flags = mmap.MAP_PRIVATE | _NO_RESERVE
        return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return mmap.mmap(fd, size, access=mmap.ACCESS_COPY)


class Blob:
    """The bytes of one storage: a part of the mapping, or data to inflate on demand."""

    __slots__ = ("_inflate", "_view", "file", "is_big_endian", "size", "start")

    def __init__(
        self,
        view: memoryview | None,
        size: int,
        *,
        start: int = 0,
        file: MappedFile | None = None,
        is_big_endian: bool = False,
        inflate: Callable[[], memoryview] | None = None,
    ) -> None:
        self._view = view
        self._inflate = inflate
        self.size = size
        self.start = start
        """Where its bytes begin in the mapping."""
        self.file = file
        self.is_big_endian = is_big_endian

    @property
    def mapping(self) -> memoryview | None:
        """The whole mapping; None for compressed bytes."""
        return self._view

    def open(self) -> memoryview:
        """The bytes. Inflated ones are freed with the caller's reference."""
        if self._view is not None:
            return self._view[self.start : self.start + self.size]
        assert self._inflate is not None
        return self._inflate()

    @property
    def block_bytes(self) -> int:
        return self.file.block_bytes if self.file is not None else MappedFile.block_bytes

    def need(self, start: int, end: int) -> None:
        if self.file is not None:
            self.file.need(self.start + start, self.start + end)

    def check_length(self) -> None:
        if self.file is not None:
            self.file.check_length()

    def done(self, start: int, end: int) -> None:
        if self.file is not None:
            self.file.done(self.start + start, self.start + end)


def read_small(path: str | os.PathLike[str], at_most: int) -> bytes:
    """Map a whole regular file; a pipe is never opened, and a file that is too large is a fault."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(fd, "rb") as handle:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileFault("unreadable", "not a regular file (a device, pipe or socket)")
        if status.st_size > at_most:
            raise FileFault("limit_exceeded", f"it has {status.st_size:,} bytes")
        return handle.read(at_most)


def map_temporary(write: Callable[[Callable[[bytes], object]], None]) -> memoryview:
    """Collect the output of `write` in an unnamed temporary file instead of memory."""
    with tempfile.TemporaryFile() as handle:
        write(handle.write)
        handle.flush()
        size = handle.tell()
        if size == 0:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(handle.fileno(), size, access=mmap.ACCESS_COPY))

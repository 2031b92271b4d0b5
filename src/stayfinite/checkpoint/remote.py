"""Files in any store that fsspec supports, read in ranges, several at once.

A remote file has the interface of a mapped one. Its bytes have addresses in a mapping that is empty at first. A range is fetched
when it is needed and released afterwards, so a file of any size needs only a fixed amount of memory and no disk.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

from ..errors import StayfiniteError, UsageError
from .files import MappedFile
from .limits import FileFault

__all__ = ["RemoteFile", "RemotePath", "is_remote", "remote_path", "remote_paths"]

_BLOCK = 8 << 20
_MAX_CACHED = 128 << 20
_NUM_AHEAD = 3
_NUM_FETCHERS = 8
_WAIT_SECONDS = 300.0
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
_PACKAGES |= {
    "az": "adlfs",
    "abfs": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
}


def is_remote(text: str) -> bool:
    """Whether this is an address of a store, not a local path.

    >>> is_remote("s3://bucket/model.pt"), is_remote("runs/a://b"), is_remote("runs/a.pt")
    (True, False, False)
    """
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme.isalnum() and len(scheme) > 1


def _file_system(text: str) -> tuple[Any, str]:
    scheme = text.partition("://")[0]
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(text)
    except ImportError as e:
        package = _PACKAGES.get(scheme, "fsspec")
        message = f"{scheme}:// needs another package: pip install 'stayfinite[remote]' {package}"
        raise UsageError(f"{message} ({e})") from None
    except ValueError as e:
        raise UsageError(f"{text!r} cannot be opened: {e}") from None
    return fs, path


class RemotePath:
    """The path interface for a store."""

    def __init__(self, fs: Any, path: str, info: dict[str, Any] | None = None) -> None:
        self.fs = fs
        self.path = path.rstrip("/") or path
        self._info = info

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(self.path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.fs, f"{self.path}/{name}")

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    @property
    def info(self) -> dict[str, Any]:
        """The metadata in the store; {} if there is none."""
        if self._info is None:
            try:
                self._info = dict(self.fs.info(self.path))
            except FileNotFoundError:
                self._info = {}
        return self._info

    def exists(self) -> bool:
        return bool(self.info)

    def is_dir(self) -> bool:
        return self.info.get("type") == "directory"

    def is_file(self) -> bool:
        return self.info.get("type") in ("file", "other")

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> SimpleNamespace:
        if not self.info:
            raise FileNotFoundError(2, "no such file", str(self))
        return SimpleNamespace(st_size=self.info.get("size") or 0, st_mtime=_modified(self.info))

    def children(self) -> list[RemotePath]:
        found = self.fs.ls(self.path, detail=True)
        own = self.path.strip("/")
        return [
            RemotePath(self.fs, e["name"], dict(e)) for e in found if e["name"].strip("/") != own
        ]

    def read(self, at_most: int) -> bytes:
        """The first bytes."""
        size = self.info.get("size")
        end = at_most if size is None else min(at_most, size)
        return bytes(self.fs.cat_file(self.path, start=0, end=end)) if end else b""


def _modified(info: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return float(value)
        if hasattr(value, "timestamp"):
            return float(value.timestamp())  # type: ignore[union-attr]
    return 0.0


def remote_path(text: str) -> RemotePath:
    return RemotePath(*_file_system(text))


def remote_paths(text: str) -> list[RemotePath]:
    """The one path, or those that a glob matches; none is an empty list."""
    fs, path = _file_system(text)
    try:
        if any(c in path for c in "*?["):
            return [RemotePath(fs, p) for p in sorted(fs.glob(path))]
        one = RemotePath(fs, path)
        return [one] if one.exists() else []
    except StayfiniteError:
        raise
    except Exception as e:
        raise UsageError(
            f"{text}: the store cannot be asked: {type(e).__name__}: {e!s:.200}"
        ) from e


_lock = threading.Lock()
_fetchers: dict[int, ThreadPoolExecutor] = {}


def _fetch_pool() -> ThreadPoolExecutor:
    with _lock:
        pool = _fetchers.get(os.getpid())
        if pool is None:
            pool = _fetchers[os.getpid()] = ThreadPoolExecutor(_NUM_FETCHERS, "stayfinite-fetch")
        return pool


class RemoteFile(MappedFile):
    """A file in a store, with the interface of a mapped one."""

    is_remote = True
    block_bytes = _BLOCK

    def __init__(self, path: RemotePath) -> None:
        self.path = path  # type: ignore[assignment]
        self._source = path
        size = path.info.get("size")
        if not path.is_file():
            raise FileFault("unreadable", "not a file")
        if size is None:
            raise FileFault("unreadable", "the store does not report its size: copy the file first")
        self.size = int(size)
        self._map: mmap.mmap | None = None
        self.view = memoryview(b"")
        if self.size:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
            self._map = mmap.mmap(-1, self.size, flags=flags)
            self.view = memoryview(self._map)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Future[None]] = OrderedDict()
        self._pins: dict[int, int] = {}

    def need(self, start: int, end: int) -> None:
        blocks = self._covering(start, end)
        with self._lock:
            for i in blocks:
                self._pins[i] = self._pins.get(i, 0) + 1
            waiting = [self._ask(i) for i in blocks]
            for i in range(blocks.stop, min(blocks.stop + _NUM_AHEAD, -(-self.size // _BLOCK))):
                self._ask(i)
        try:
            for future in waiting:
                future.result(_WAIT_SECONDS)
        except FileFault:
            self.done(start, end)
            raise
        except Exception as e:
            self.done(start, end)
            message = f"cannot be fetched: {type(e).__name__}: {e!s:.200}"
            raise FileFault("unreadable", message) from None

    def done(self, start: int, end: int) -> None:
        with self._lock:
            for i in self._covering(start, end):
                self._pins[i] -= 1
            self._let_go()

    def check_length(self) -> None:
        """Fetched bytes cannot be truncated."""

    def close(self) -> None:
        with self._lock:
            futures = list(self._blocks.values())
        for future in futures:
            if not future.cancel():
                future.exception()
        try:
            self.view.release()
            if self._map is not None:
                self._map.close()
        except BufferError:
            pass

    def _covering(self, start: int, end: int) -> range:
        return range(start // _BLOCK, -(-end // _BLOCK)) if end > start else range(0)

    def _ask(self, number: int) -> Future[None]:
        """The block, fetched or being fetched."""
        future = self._blocks.get(number)
        if future is None or (future.done() and future.exception() is not None):
            future = _fetch_pool().submit(self._fetch, number)
            self._blocks[number] = future
        self._blocks.move_to_end(number)
        return future

    def _fetch(self, number: int) -> None:
        start = number * _BLOCK
        end = min(start + _BLOCK, self.size)
        data = self._source.fs.cat_file(self._source.path, start=start, end=end)
        if len(data) == self.size and len(data) != end - start:
            raise FileFault("unreadable", "the store does not serve ranges: copy the file first")
        if len(data) != end - start:
            raise FileFault("truncated", f"the store gave {len(data):,} of {end - start:,} bytes")
        self.view[start:end] = data

    def _let_go(self) -> None:
        """Drop the least recently used blocks beyond the limit."""
        surplus = len(self._blocks) - _MAX_CACHED // _BLOCK
        for i in list(self._blocks):
            if surplus <= 0 or self._map is None:
                return
            if not self._pins.get(i) and self._blocks[i].done():
                del self._blocks[i]
                size = min(_BLOCK, self.size - i * _BLOCK)
                self._map.madvise(mmap.MADV_DONTNEED, i * _BLOCK, size)
                surplus -= 1

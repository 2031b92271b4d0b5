"""Reads a zip directory defensively: every offset is checked, and no two entries may overlap."""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .files import Blob, Region, map_temporary
from .limits import FileFault, LimitError, Limits

__all__ = ["Archive", "Entry"]

_END = b"PK\x05\x06"
_END64 = b"PK\x06\x06"
_LOCATOR64 = b"PK\x06\x07"
_CENTRAL = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8
_MAX_COMMENT = 65_535
_PIECE = 1 << 20
_BYTES_PER_ENTRY = 185
_FULL = 0xFFFFFFFF
_central = struct.Struct("<4s4xHH4xIIIHHH8xI").unpack_from
"""Signature, flags, method, checksum, packed size, size, lengths of name, extra and comment, offset."""
_CENTRAL_SIZE, _LOCAL_SIZE = 46, 30


@dataclass(slots=True)
class Entry:
    """One file in the archive."""

    name: str
    method: int
    crc: int
    packed: int
    size: int
    header: int
    """Where its local header begins."""


class Archive:
    """The entries of a zip archive by name; `findings` lists what is wrong with it.

    The directory stays as it is in the file; an entry is taken out of it when somebody asks.
    """

    def __init__(self, region: Region, limits: Limits) -> None:
        self.region = region
        self.limits = limits
        self.findings: list[tuple[str, str]] = []
        self.entries: dict[str, int] = {}
        """By name: where in the directory the entry is described."""
        start, length, count = _directory(region)
        if count > limits.max_entries:
            raise LimitError(f"the archive has {count:,} entries")
        limits.spend(length + _BYTES_PER_ENTRY * count)
        self._directory = region.read(start, start + length)
        self._headers = array("Q")
        """Where the entries begin and, last, where the directory does."""
        self._read_directory(count, start)

    def _read_directory(self, count: int, directory: int) -> None:
        pos, free, is_sorted = 0, 0, True
        spans: list[tuple[int, int, str]] = []
        for _ in range(count):
            self.limits.tick()
            entry, after = _central_entry(self._directory, pos)
            self._check_name(entry.name)
            self.entries[entry.name] = pos
            pos = after
            end = entry.header + _LOCAL_SIZE + entry.packed
            if end > self.region.size:
                raise FileFault(
                    "truncated", f"the archive entry {entry.name!r:.80} runs beyond the file's end"
                )
            if entry.method == _STORED and entry.packed != entry.size:
                raise FileFault(
                    "unreadable", f"the archive entry {entry.name!r:.80} lies about its size"
                )
            is_sorted = is_sorted and entry.header >= free
            free = end
            self._headers.append(entry.header)
        if not is_sorted or free > directory:
            self._headers = array("Q", sorted(self._headers))
            spans = sorted(
                (e.header, e.header + _LOCAL_SIZE + e.packed, e.name) for e in self.all()
            )
            self._check_overlaps(spans, directory)
        self._headers.append(directory)

    def _check_name(self, name: str) -> None:
        if len(name) > self.limits.max_name:
            raise LimitError(f"an archive entry has a name of {len(name):,} characters")
        if name in self.entries:
            raise FileFault("unreadable", f"two archive entries are called {name!r:.80}")
        if _is_unsafe(name):
            message = f"the archive entry {name!r:.120} points outside the archive"
            self.findings.append(("unsafe_name", message))

    def _check_overlaps(self, spans: list[tuple[int, int, str]], directory: int) -> None:
        free = 0
        for start, end, name in spans:
            if start < free or end > directory:
                self._object_to(name)
                return
            free = end

    def _object_to(self, name: str) -> None:
        message = f"the archive entry {name!r:.80} reuses another entry's bytes"
        if not any(code == "zip_bomb" for code, _ in self.findings):
            self.findings.append(("zip_bomb", message))

    def all(self) -> Iterator[Entry]:
        """Every entry, in the order of the directory."""
        return (_central_entry(self._directory, pos)[0] for pos in self.entries.values())

    def entry(self, name: str) -> Entry:
        return _central_entry(self._directory, self.entries[name])[0]

    def _start(self, entry: Entry) -> int:
        """The start of the entry's data, which only its local header shows."""
        head = self.region.read(entry.header, entry.header + _LOCAL_SIZE)
        if len(head) < _LOCAL_SIZE or head[:4] != _LOCAL:
            raise FileFault(
                "truncated", f"the archive entry {entry.name!r:.80} is not where it should be"
            )
        name_length, extra_length = struct.unpack_from("<HH", head, 26)
        start = entry.header + _LOCAL_SIZE + int(name_length) + int(extra_length)
        if start + entry.packed > self.region.size:
            raise FileFault(
                "truncated", f"the archive entry {entry.name!r:.80} runs beyond the file's end"
            )
        after = self._headers[
            min(bisect_right(self._headers, entry.header), len(self._headers) - 1)
        ]
        if start + entry.packed > after > entry.header:
            self._object_to(entry.name)
        return start

    def blob(self, name: str, *, is_big_endian: bool = False) -> Blob:
        """The data of an entry; deflated data is inflated into a temporary file when opened."""
        entry = self.entry(name)
        if entry.method == _STORED:
            return self.region.blob(self._start(entry), entry.size, is_big_endian=is_big_endian)
        self._check_inflation(entry)
        return Blob(
            None,
            entry.size,
            is_big_endian=is_big_endian,
            inflate=lambda: map_temporary(lambda write: self._inflate(entry, write)),
        )

    def region_of(self, name: str) -> Region:
        """An entry as a file; deflated data is inflated into a temporary file."""
        entry = self.entry(name)
        if entry.method == _STORED:
            start = self._start(entry)
            return self.region.part(start, start + entry.size)
        self._check_inflation(entry)
        return Region(map_temporary(lambda write: self._inflate(entry, write)))

    def read(self, name: str, at_most: int) -> bytearray | memoryview:
        """The whole of a small entry, a mapped one as it lies where it is not that small."""
        entry = self.entry(name)
        if entry.size > at_most:
            raise LimitError(f"the archive entry {name!r:.80} has {entry.size:,} bytes")
        if entry.method == _STORED:
            start = self._start(entry)
            if entry.size < _COPY_BELOW or self.region.file is None or self.region.file.is_remote:
                self.limits.spend(entry.size)
                return bytearray(self.region.read(start, start + entry.size))
            with self.region.held(start, start + entry.size) as view:
                return view
        self._check_inflation(entry)
        self.limits.spend(entry.size)
        whole = bytearray()
        self._inflate(entry, whole.extend)
        return whole

    def has_good_checksum(self, name: str) -> bool:
        """Whether the entry's bytes match the checksum that was written with them."""
        entry, crc = self.entry(name), 0
        if entry.method == _STORED:
            for piece in self._pieces(entry):
                crc = zlib.crc32(piece, crc)
            return crc == entry.crc
        box = [0]

        def add(piece: bytes) -> None:
            box[0] = zlib.crc32(piece, box[0])

        self._check_inflation(entry)
        self._inflate(entry, add)
        return box[0] == entry.crc

    def _pieces(self, entry: Entry) -> Iterator[memoryview]:
        start = self._start(entry)
        for at in range(start, start + entry.packed, _PIECE):
            with self.region.held(at, min(at + _PIECE, start + entry.packed)) as piece:
                yield piece

    def _check_inflation(self, entry: Entry) -> None:
        if entry.method != _DEFLATED:
            raise FileFault(
                "unreadable", f"{entry.name!r:.80} is packed with method {entry.method}"
            )
        ratio = entry.size / max(entry.packed, 1)
        if entry.size > self.limits.min_bomb_bytes and ratio > self.limits.max_inflate_ratio:
            raise FileFault(
                "zip_bomb",
                f"the archive entry {entry.name!r:.80} would inflate {entry.packed:,} bytes "
                f"to {entry.size:,}",
            )

    def _inflate(self, entry: Entry, write: Callable[[bytes], object]) -> None:
        engine, total = zlib.decompressobj(-15), 0
        try:
            for packed in self._pieces(entry):
                waiting: bytes | memoryview = packed
                while len(waiting) and not engine.eof:
                    piece = engine.decompress(waiting, _PIECE)
                    waiting = engine.unconsumed_tail
                    total += len(piece)
                    if total > entry.size:
                        raise FileFault(
                            "zip_bomb", f"{entry.name!r:.80} inflates beyond its own size"
                        )
                    write(piece)
        except zlib.error as e:
            raise FileFault("unreadable", f"{entry.name!r:.80} cannot be inflated: {e}") from None
        if total != entry.size:
            raise FileFault(
                "truncated", f"{entry.name!r:.80} inflates to {total:,} of {entry.size:,} bytes"
            )


_COPY_BELOW = 64 << 20
"""Copy the directory, because a copy is read faster than a mapping."""


def _directory(region: Region) -> tuple[int, int, int]:
    """Where the central directory starts, its length, and how many entries it has."""
    tail_start = max(0, region.size - _MAX_COMMENT - 22)
    tail = region.read(tail_start, region.size)
    at = tail.rfind(_END)
    if at < 0 or at + 22 > len(tail):
        raise FileFault("truncated", "the archive's directory, at its end, is missing")
    count, length, start = struct.unpack_from("<HII", tail, at + 10)
    if count == 0xFFFF or _FULL in (length, start):
        start, length, count = _directory64(region, tail_start + at)
    if start + length > region.size:
        raise FileFault("truncated", "the archive's directory lies outside the file")
    return start, length, count


def _directory64(region: Region, end: int) -> tuple[int, int, int]:
    """The same for an archive over 4 GB or with more than 65,535 entries."""
    locator = region.read(end - 20, end) if end >= 20 else b""
    if locator[:4] != _LOCATOR64:
        raise FileFault("unreadable", "the archive's large-file directory is missing")
    (at,) = struct.unpack_from("<Q", locator, 8)
    record = region.read(at, at + 56) if at + 56 <= region.size else b""
    if record[:4] != _END64:
        raise FileFault(
            "unreadable", "the archive's large-file directory is not where it should be"
        )
    count, length, start = struct.unpack_from("<QQQ", record, 32)
    return start, length, count


def _central_entry(directory: bytes, pos: int) -> tuple[Entry, int]:
    """The entry at `pos`, and the position of the next one."""
    if pos + _CENTRAL_SIZE > len(directory):
        raise FileFault("unreadable", "the archive's directory is damaged")
    mark, flags, method, crc, packed, size, name_length, extra_length, comment_length, header = (
        _central(directory, pos)
    )
    at = pos + _CENTRAL_SIZE
    after = at + name_length + extra_length + comment_length
    if mark != _CENTRAL or after > len(directory):
        raise FileFault("unreadable", "the archive's directory is damaged")
    name = directory[at : at + name_length].decode("utf-8", "replace")
    if flags & 1:
        raise FileFault("unreadable", f"the archive entry {name!r:.80} is encrypted")
    if _FULL in (size, packed, header):
        extra = directory[at + name_length : at + name_length + extra_length]
        size, packed, header = _large_fields(extra, size, packed, header)
    return Entry(name, method, crc, packed, size, header), after


def _large_fields(extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Sizes beyond 4 GB stand in an extra field, in this order, only those that do not fit."""
    values = [size, packed, header]
    pos = 0
    while pos + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, pos)
        if kind == 1:
            field = extra[pos + 4 : pos + 4 + length]
            for i, value in enumerate(values):
                if value == _FULL:
                    if len(field) < 8:
                        raise FileFault("unreadable", "the archive's large-file sizes are damaged")
                    (values[i],) = struct.unpack_from("<Q", field)
                    field = field[8:]
        pos += 4 + length
    return values[0], values[1], values[2]


def _is_unsafe(name: str) -> bool:
    if name.isascii() and name.isprintable() and not set(name) & set(":\\") and ".." not in name:
        return name.startswith("/")
    parts = name.replace("\\", "/").split("/")
    return (
        ".." in parts or name.startswith(("/", "\\")) or ":" in parts[0] or not name.isprintable()
    )

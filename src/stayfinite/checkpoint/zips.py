"""A zip directory read with suspicion: every offset checked, no two entries on the same bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from .files import Blob, MappedFile, map_temporary
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
    start: int = 0
    """Where its bytes begin."""


class Archive:
    """The entries of a zip archive by name; `findings` lists what is wrong with it."""

    def __init__(self, view: memoryview, limits: Limits, file: MappedFile | None = None) -> None:
        self.view = view
        self.file = file
        self.limits = limits
        self.findings: list[tuple[str, str]] = []
        self.entries: dict[str, Entry] = {}
        start, length, count = _directory(view)
        if count > limits.max_entries:
            raise LimitError(f"the archive has {count:,} entries")
        self._read_directory(start, length, count)
        self._check_overlaps(start)

    def _read_directory(self, start: int, length: int, count: int) -> None:
        pos, end = start, start + length
        for _ in range(count):
            entry, pos = _central_entry(self.view, pos, end)
            if len(entry.name) > self.limits.max_name:
                raise LimitError(f"an archive entry has a name of {len(entry.name):,} characters")
            if entry.name in self.entries:
                raise FileFault("unreadable", f"two archive entries are called {entry.name!r:.80}")
            if _is_unsafe(entry.name):
                self.findings.append(
                    (
                        "unsafe_name",
                        f"the archive entry {entry.name!r:.120} points outside the archive",
                    )
                )
            self._locate(entry)
            self.entries[entry.name] = entry

    def _locate(self, entry: Entry) -> None:
        view, at = self.view, entry.header
        if at + 30 > len(view) or view[at : at + 4] != _LOCAL:
            raise FileFault(
                "truncated", f"the archive entry {entry.name!r:.80} is not where it should be"
            )
        name_length, extra_length = struct.unpack_from("<HH", view, at + 26)
        start = at + 30 + name_length + extra_length
        if start + entry.packed > len(view):
            raise FileFault(
                "truncated", f"the archive entry {entry.name!r:.80} runs beyond the file's end"
            )
        if entry.method == _STORED and entry.packed != entry.size:
            raise FileFault(
                "unreadable", f"the archive entry {entry.name!r:.80} lies about its size"
            )
        entry.start = start

    def _check_overlaps(self, directory: int) -> None:
        free = 0
        for entry in sorted(self.entries.values(), key=lambda e: e.header):
            if entry.header < free or entry.start + entry.packed > directory:
                self.findings.append(
                    (
                        "zip_bomb",
                        f"the archive entry {entry.name!r:.80} reuses another entry's bytes",
                    )
                )
                return
            free = entry.start + entry.packed

    def blob(self, name: str, *, is_big_endian: bool = False) -> Blob:
        """The bytes of an entry; deflated ones are inflated into a temporary file when opened."""
        entry = self.entries[name]
        if entry.method == _STORED:
            piece = self.view[entry.start : entry.start + entry.size]
            return Blob(piece, entry.size, file=self.file, is_big_endian=is_big_endian)
        self._check_inflation(entry)
        return Blob(
            None,
            entry.size,
            is_big_endian=is_big_endian,
            inflate=lambda: map_temporary(lambda write: self._inflate(entry, write)),
        )

    def read(self, name: str, at_most: int) -> memoryview | bytes:
        """The whole of a small entry; its checksum must match when it is small enough to look."""
        entry = self.entries[name]
        if entry.size > at_most:
            raise LimitError(f"the archive entry {name!r:.80} has {entry.size:,} bytes")
        if entry.method == _STORED:
            return self.view[entry.start : entry.start + entry.size]
        self._check_inflation(entry)
        pieces: list[bytes] = []
        self._inflate(entry, pieces.append)
        return b"".join(pieces)

    def has_good_checksum(self, name: str) -> bool:
        """Whether the entry's bytes match the checksum that was written with them."""
        entry, crc = self.entries[name], 0
        if entry.method == _STORED:
            for at in range(entry.start, entry.start + entry.size, _PIECE):
                crc = zlib.crc32(self.view[at : min(at + _PIECE, entry.start + entry.size)], crc)
            return crc == entry.crc
        box = [0]

        def add(piece: bytes) -> None:
            box[0] = zlib.crc32(piece, box[0])

        self._inflate(entry, add)
        return box[0] == entry.crc

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
            for at in range(entry.start, entry.start + entry.packed, _PIECE):
                waiting: bytes | memoryview = self.view[
                    at : min(at + _PIECE, entry.start + entry.packed)
                ]
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


def _directory(view: memoryview) -> tuple[int, int, int]:
    """Where the central directory starts, its length, and how many entries it has."""
    tail_start = max(0, len(view) - _MAX_COMMENT - 22)
    tail = bytes(view[tail_start:])
    at = tail.rfind(_END)
    if at < 0 or at + 22 > len(tail):
        raise FileFault("truncated", "the archive's directory, at its end, is missing")
    count, length, start = struct.unpack_from("<HII", tail, at + 10)
    if 0xFFFF in (count,) or 0xFFFFFFFF in (length, start):
        count, length, start = _directory64(view, tail_start + at)
    if start + length > len(view):
        raise FileFault("truncated", "the archive's directory lies outside the file")
    return start, length, count


def _directory64(view: memoryview, end: int) -> tuple[int, int, int]:
    locator = end - 20
    if locator < 0 or view[locator : locator + 4] != _LOCATOR64:
        raise FileFault("unreadable", "the archive's large-file directory is missing")
    (at,) = struct.unpack_from("<Q", view, locator + 8)
    if at + 56 > len(view) or view[at : at + 4] != _END64:
        raise FileFault(
            "unreadable", "the archive's large-file directory is not where it should be"
        )
    count, length, start = struct.unpack_from("<QQQ", view, at + 32)
    return start, length, count


def _central_entry(view: memoryview, pos: int, end: int) -> tuple[Entry, int]:
    if pos + 46 > end or view[pos : pos + 4] != _CENTRAL:
        raise FileFault("unreadable", "the archive's directory is damaged")
    flags, method = struct.unpack_from("<HH", view, pos + 8)
    crc, packed, size, name_length, extra_length, comment_length = struct.unpack_from(
        "<IIIHHH", view, pos + 16
    )
    (header,) = struct.unpack_from("<I", view, pos + 42)
    after = pos + 46 + name_length + extra_length + comment_length
    if after > end:
        raise FileFault("unreadable", "the archive's directory is damaged")
    name = bytes(view[pos + 46 : pos + 46 + name_length]).decode("utf-8", "replace")
    if flags & 1:
        raise FileFault("unreadable", f"the archive entry {name!r:.80} is encrypted")
    if 0xFFFFFFFF in (size, packed, header):
        extra = bytes(view[pos + 46 + name_length : pos + 46 + name_length + extra_length])
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
                if value == 0xFFFFFFFF:
                    if len(field) < 8:
                        raise FileFault("unreadable", "the archive's large-file sizes are damaged")
                    (values[i],) = struct.unpack_from("<Q", field)
                    field = field[8:]
        pos += 4 + length
    return values[0], values[1], values[2]


def _is_unsafe(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return (
        ".." in parts or name.startswith(("/", "\\")) or ":" in parts[0] or not name.isprintable()
    )

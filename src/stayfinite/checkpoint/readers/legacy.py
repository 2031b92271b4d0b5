"""Torch files from before 1.6: five pickles followed by the storages."""

from __future__ import annotations

import struct
from typing import Any

from ..files import MappedFile, Region
from ..limits import FileFault, Limits
from ..measure import dtype_of
from ..pickles import Machine
from ..values import StorageRef
from . import nested
from .base import Contents
from .storages import StorageTable, attach, pickle_bytes

__all__ = ["matches", "read", "read_region"]

_MAGIC = 0x1950A86A20F9469CFC6C
_HEAD = b"\x8a\x0a" + _MAGIC.to_bytes(10, "little")


def matches(head: bytes) -> bool:
    return head[:1] == b"\x80" and head[2:14] == _HEAD


def read(file: MappedFile, limits: Limits) -> Contents:
    return read_region(Region.of(file), limits)


def read_embedded(view: memoryview, limits: Limits, depth: int) -> Contents:
    return read_region(Region(view), limits, depth)


def read_region(region: Region, limits: Limits, depth: int = 0) -> Contents:
    """A legacy file, wherever its bytes lie."""
    contents = Contents("torch legacy")
    table = StorageTable()
    data = pickle_bytes(region, limits)
    machine = Machine(
        data,
        limits,
        persistent=table.load,
        nested=lambda raw: nested.read(raw, limits, contents, depth),
    )
    _, _, system, root, keys = contents.run(machine, 5)
    contents.roots.append(("", root))
    if contents.findings and keys is None:
        return contents
    is_big = isinstance(system, dict) and system.get("little_endian") is False
    if not isinstance(keys, (list, tuple)):
        raise FileFault("unreadable", "the list of storages is missing")
    try:
        _place(region, machine.pos, keys, table, is_big)
    except FileFault as e:
        contents.findings.append((e.code, str(e)))
    return contents


def _place(region: Region, pos: int, keys: Any, table: StorageTable, is_big: bool) -> None:
    """Find each storage's bytes: a count of elements, then the elements."""
    by_key: dict[str, list[StorageRef]] = {}
    for ref in table.refs:
        by_key.setdefault(ref.key, []).append(ref)
    seen: set[str] = set()
    for key in keys:
        if str(key) in seen:
            raise FileFault("unreadable", f"storage {str(key)!r:.60} is listed twice")
        seen.add(str(key))
        refs = by_key.get(str(key))
        if not refs:
            raise FileFault("unreadable", f"storage {str(key)!r:.60} belongs to no tensor")
        if pos + 8 > region.size:
            raise FileFault("truncated", f"the file ends before storage {str(key)!r:.60}")
        (count,) = struct.unpack(">q" if is_big else "<q", region.read(pos, pos + 8))
        elements = dtype_of(refs[0].dtype) if refs[0].dtype else None
        size = count * (elements.itemsize if elements else 1)
        if count < 0 or pos + 8 + size > region.size:
            raise FileFault("truncated", f"the file ends within storage {str(key)!r:.60}")
        blob = region.blob(pos + 8, size, is_big_endian=is_big)
        for ref in refs:
            attach(ref, blob)
        pos += 8 + size

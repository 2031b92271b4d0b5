"""GGUF, the format of llama.cpp: typed metadata, a list of tensors, then the data.

A quantized tensor is judged by the scales of its blocks: they are its only floats, and a NaN scale makes a whole block NaN.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any, NamedTuple

from ..files import MappedFile, Region
from ..geometry import row_major
from ..limits import FileFault, LimitError, Limits
from ..measure import dtype_of
from ..values import StorageRef, TensorRef
from .base import Contents

__all__ = ["matches", "read"]

_MAGIC = b"GGUF"
_WINDOW = 1 << 20
_MAX_TEXT = 1 << 24
_DEFAULT_ALIGNMENT = 32
_PLAIN = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64",
    30: "bfloat16",
}  # fmt: skip


class Packed(NamedTuple):
    """A quantized type: blocks of this many elements and bytes, with floats at these places."""

    title: str
    elements: int
    num_bytes: int
    scales: tuple[tuple[str, int], ...]
    """(dtype, byte in the block)"""


_HALF = "float16"
_PACKED = {
    2: Packed("Q4_0", 32, 18, ((_HALF, 0),)),
    3: Packed("Q4_1", 32, 20, ((_HALF, 0), (_HALF, 2))),
    6: Packed("Q5_0", 32, 22, ((_HALF, 0),)),
    7: Packed("Q5_1", 32, 24, ((_HALF, 0), (_HALF, 2))),
    8: Packed("Q8_0", 32, 34, ((_HALF, 0),)),
    10: Packed("Q2_K", 256, 84, ((_HALF, 80), (_HALF, 82))),
    11: Packed("Q3_K", 256, 110, ((_HALF, 108),)),
    12: Packed("Q4_K", 256, 144, ((_HALF, 0), (_HALF, 2))),
    13: Packed("Q5_K", 256, 176, ((_HALF, 0), (_HALF, 2))),
    14: Packed("Q6_K", 256, 210, ((_HALF, 208),)),
    15: Packed("Q8_K", 256, 292, (("float32", 0),)),
    16: Packed("IQ2_XXS", 256, 66, ((_HALF, 0),)),
    17: Packed("IQ2_XS", 256, 74, ((_HALF, 0),)),
    18: Packed("IQ3_XXS", 256, 98, ((_HALF, 0),)),
    19: Packed("IQ1_S", 256, 50, ((_HALF, 0),)),
    20: Packed("IQ4_NL", 32, 18, ((_HALF, 0),)),
    21: Packed("IQ3_S", 256, 110, ((_HALF, 0),)),
    22: Packed("IQ2_S", 256, 82, ((_HALF, 0),)),
    23: Packed("IQ4_XS", 256, 136, ((_HALF, 0),)),
    34: Packed("TQ1_0", 256, 54, ((_HALF, 52),)),
    35: Packed("TQ2_0", 256, 66, ((_HALF, 64),)),
    39: Packed("MXFP4", 32, 17, (("float8_e8m0fnu", 0),)),
}
_FACTS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


def matches(head: bytes) -> bool:
    return head[:4] == _MAGIC


def read(file: MappedFile, limits: Limits) -> Contents:
    region = Region.of(file)
    cursor = _Cursor(region, limits)
    cursor.take(4)
    version = cursor.number("I")
    if version not in (2, 3):
        raise FileFault("unreadable", f"GGUF version {version} is not known")
    num_tensors, num_facts = cursor.number("Q"), cursor.number("Q")
    if num_tensors > limits.max_entries or num_facts > limits.max_entries:
        raise LimitError(f"{num_tensors:,} tensors and {num_facts:,} facts")
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(num_facts):
        key = cursor.text()
        value = cursor.fact(cursor.number("I"))
        if key == b"general.alignment" and isinstance(value, int):
            alignment = value
    if not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise FileFault("unreadable", f"an alignment of {alignment:,} bytes")
    entries = [_entry(cursor) for _ in range(num_tensors)]
    start = -(-cursor.pos // alignment) * alignment
    return _contents(entries, region.part(min(start, region.size), region.size), limits)


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, type, offset); the file has the fastest dimension first."""
    name = cursor.text().decode("utf-8", "replace")
    num_dims = cursor.number("I")
    if num_dims > 8:
        raise FileFault("unreadable", f"a tensor with {num_dims:,} dimensions")
    dims = [cursor.number("Q") for _ in range(num_dims)]
    return name, tuple(reversed(dims)), cursor.number("I"), cursor.number("Q")


def _contents(
    entries: list[tuple[str, tuple[int, ...], int, int]], data: Region, limits: Limits
) -> Contents:
    contents = Contents("gguf")
    tree: dict[str, Any] = {}
    for name, shape, kind, offset in entries:
        limits.tick()
        if name in tree:
            contents.findings.append(("unreadable", f"two tensors are called {name!r:.120}"))
            continue
        try:
            if kind in _PACKED:
                tree[name] = _packed(_PACKED[kind], shape, offset, data)
            else:
                tree[name] = _plain(kind, shape, offset, data)
        except FileFault as e:
            contents.findings.append((e.code, f"{name!r:.120}: {e}"))
    contents.roots.append(("", tree))
    return contents


def _plain(kind: int, shape: tuple[int, ...], offset: int, data: Region) -> TensorRef:
    name = _PLAIN.get(kind)
    elements = dtype_of(name) if name else None
    if name is None or elements is None:
        raise FileFault("not_scanned", f"tensor type {kind} is not known here")
    storage = _storage(name, data, offset, prod(shape) * elements.itemsize, elements.itemsize)
    return TensorRef(storage, name, 0, shape, row_major(shape))


def _packed(packed: Packed, shape: tuple[int, ...], offset: int, data: Region) -> dict[str, Any]:
    count = prod(shape)
    if count % packed.elements:
        message = f"{count:,} elements are no whole number of {packed.title} blocks"
        raise FileFault("unreadable", message)
    blocks = count // packed.elements
    found = {}
    for i, (dtype, place) in enumerate(packed.scales):
        elements = dtype_of(dtype)
        if elements is None:
            raise FileFault("not_scanned", f"{packed.title} needs {dtype}, unknown to this torch")
        width = elements.itemsize
        storage = _storage(dtype, data, offset, blocks * packed.num_bytes, width)
        label = f"{'scales' if i == 0 else 'minima'} of its {packed.title} blocks"
        stride = packed.num_bytes // width
        found[label] = TensorRef(storage, dtype, place // width, (blocks,), (stride,))
    return found


def _storage(dtype: str, data: Region, offset: int, size: int, width: int) -> StorageRef:
    if offset + size > data.size:
        raise FileFault(
            "truncated", f"its bytes end at {offset + size:,}, the file's at {data.size:,}"
        )
    storage = StorageRef(str(offset), dtype, size // width)
    storage.blob = data.blob(offset, size)
    return storage


class _Cursor:
    """Reads the header step by step, because its length is not stored."""

    def __init__(self, region: Region, limits: Limits) -> None:
        self._region = region
        self._limits = limits
        self._window = b""
        self._start = 0
        self.pos = 0

    def take(self, count: int) -> bytes:
        at = self.pos - self._start
        if at + count > len(self._window):
            self._window = self._region.read(self.pos, self.pos + max(count, _WINDOW))
            self._start, at = self.pos, 0
            if count > len(self._window):
                raise FileFault("truncated", "the file ends within its list of tensors")
        self.pos += count
        self._limits.tick()
        return self._window[at : at + count]

    def number(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return value

    def text(self) -> bytes:
        length = self.number("Q")
        if length > _MAX_TEXT:
            raise LimitError(f"a text of {length:,} bytes")
        return self.take(length)

    def fact(self, kind: int) -> Any:
        """A value; long lists (a vocabulary) are skipped."""
        if kind == _TEXT:
            return self.text()
        if kind in _FACTS:
            return self.number(_FACTS[kind])
        if kind != _ARRAY:
            raise FileFault("unreadable", f"a fact of the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if count > self._limits.max_objects or inner == _ARRAY:
            raise LimitError(f"a list of {count:,} facts")
        if inner in _FACTS:
            self._skip(count * struct.calcsize("<" + _FACTS[inner]))
            return None
        for _ in range(count):
            self.fact(inner)
        return None

    def _skip(self, count: int) -> None:
        if self.pos + count > self._region.size:
            raise FileFault("truncated", "the file ends within its facts")
        self.pos += count
        self._window, self._start = b"", self.pos

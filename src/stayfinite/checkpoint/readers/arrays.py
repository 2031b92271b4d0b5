"""numpy's npy files, without numpy and without its pickled object arrays."""

from __future__ import annotations

import re
from math import prod

from ..files import MappedFile, Region
from ..limits import FileFault, Limits
from ..measure import dtype_of
from ..values import ArrayRef, StorageRef, TensorRef
from .base import Contents

__all__ = ["array_tensor", "matches", "read", "read_npy"]

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 65_536
_HEADER = re.compile(
    r"\{\s*'descr':\s*(?P<descr>'[^']{1,64}'|\[.*\]|\(.*\)),\s*'fortran_order':\s*(?P<order>True|False),\s*"
    r"'shape':\s*\((?P<shape>[\d,\sL]*)\),?\s*\}\s*",
    re.S,
)
_DESCR = re.compile(r"([<>|=]?)([a-zA-Z])(\d*)")
_TYPES = {
    ("f", 2): "float16",
    ("f", 4): "float32",
    ("f", 8): "float64",
    ("c", 8): "complex64",
    ("c", 16): "complex128",
    ("i", 1): "int8",
    ("i", 2): "int16",
    ("i", 4): "int32",
    ("i", 8): "int64",
    ("u", 1): "uint8",
    ("u", 2): "uint16",
    ("u", 4): "uint32",
    ("u", 8): "uint64",
    ("b", 1): "bool",
}


def matches(head: bytes) -> bool:
    return head[:6] == _MAGIC


def read(file: MappedFile, limits: Limits) -> Contents:
    return Contents("npy", roots=[("", {"array": read_npy(Region.of(file))})], hint="data")


def read_npy(region: Region) -> TensorRef | ArrayRef:
    """The array in an npy file; an array of text or records is returned unchanged."""
    head = region.read(0, 12)
    if head[:6] != _MAGIC or len(head) < 10:
        raise FileFault("unreadable", "not an npy file")
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    if length > _MAX_HEADER or start > region.size:
        raise FileFault("truncated", f"an npy header of {length:,} bytes")
    text = region.read(8 + width, start).decode("latin-1")
    match = _HEADER.fullmatch(text.strip() + " ")
    if match is None:
        raise FileFault("unreadable", "the npy header is damaged")
    dims = [d for d in re.split(r"[\s,L]+", match["shape"]) if d]
    if len(dims) > 64 or any(len(d) > 18 for d in dims):
        raise FileFault("unreadable", "the npy header's shape is impossible")
    array = ArrayRef()
    array.shape = tuple(int(d) for d in dims)
    array.descr = match["descr"].strip("'")
    array.fortran_order = match["order"] == "True"
    if "O" in array.descr:
        raise FileFault("unreadable", "an array of Python objects: reading it would run a pickle")
    array.data = region.part(start, region.size)
    return array_tensor(array)


def array_tensor(array: ArrayRef) -> TensorRef | ArrayRef:
    """A numeric array as a tensor over its bytes; any other array unchanged."""
    parsed = _DESCR.fullmatch(array.descr)
    if parsed is None or not isinstance(array.data, (bytes, memoryview, Region)):
        return array
    order, kind, width = parsed.groups()
    name = _TYPES.get((kind, int(width or 0)) if len(width) < 4 else (kind, 0))
    elements = dtype_of(name) if name else None
    if name is None or elements is None:
        return array
    raw = _region(array.data)
    count = prod(array.shape)
    if count * elements.itemsize > raw.size:
        raise FileFault(
            "truncated",
            f"an array of shape {list(array.shape)} needs {count * elements.itemsize:,} bytes, "
            f"the file has {raw.size:,}",
        )
    storage = StorageRef("array", name, count)
    storage.blob = raw.blob(0, count * elements.itemsize, is_big_endian=order == ">")
    return TensorRef(storage, name, 0, array.shape, _strides(array.shape, array.fortran_order))


def _strides(shape: tuple[int, ...], fortran_order: bool) -> tuple[int, ...]:
    dims = shape if fortran_order else shape[::-1]
    strides, step = [], 1
    for n in dims:
        strides.append(step)
        step *= max(n, 1)
    return tuple(strides if fortran_order else strides[::-1])


def _region(data: bytes | memoryview | Region) -> Region:
    """The bytes as a writable buffer, which torch requires, though nothing writes to it."""
    if isinstance(data, Region):
        return data
    return Region(memoryview(bytearray(data)) if isinstance(data, bytes) else data)

"""safetensors: an untrusted JSON header, followed by the data."""

from __future__ import annotations

import json
from math import prod
from typing import Any

from ..files import MappedFile, Region
from ..geometry import row_major
from ..limits import FileFault, LimitError, Limits
from ..measure import dtype_of
from ..values import StorageRef, TensorRef
from .base import Contents

__all__ = ["load_json", "matches", "read", "read_region"]

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}
_BYTES_PER_NODE = 60


def matches(head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return len(head) > 8 and head[8:9] == b"{" and 2 <= length < 1 << 40


def read(file: MappedFile, limits: Limits) -> Contents:
    return read_region(Region.of(file), limits)


def read_region(region: Region, limits: Limits) -> Contents:
    """A safetensors file, wherever its bytes lie."""
    length = int.from_bytes(region.read(0, 8), "little")
    if length > limits.max_json:
        raise LimitError(f"a header of {length:,} bytes; the format allows {limits.max_json:,}")
    if 8 + length > region.size:
        raise FileFault(
            "truncated", f"the header says {length:,} bytes, the file has {region.size:,}"
        )
    header = load_json(region.read(8, 8 + length), limits, "the header")
    data = region.part(8 + length, region.size)
    contents = Contents("safetensors")
    tree: dict[str, Any] = {}
    ranges: list[tuple[int, int, str]] = []
    for name in list(header):
        entry = header.pop(name)
        limits.tick()
        if name == "__metadata__":
            continue
        try:
            tree[name], span = _tensor(entry, data)
            ranges.append((*span, name))
        except FileFault as e:
            contents.findings.append((e.code, f"{name!r:.120}: {e}"))
    contents.roots.append(("", tree))
    contents.findings.extend(_check_ranges(ranges, data.size, bool(contents.findings)))
    return contents


def load_json(raw: bytes, limits: Limits, what: str) -> dict[str, Any]:
    """A JSON object; repeated keys, depth and the number of values are bounded."""
    if len(raw) > limits.max_json:
        raise LimitError(f"{what} has {len(raw):,} bytes")
    num_nodes = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if num_nodes > limits.max_json_nodes:
        raise LimitError(f"{what} holds more than {limits.max_json_nodes:,} values")
    cost = 2 * len(raw) + _BYTES_PER_NODE * num_nodes
    limits.spend(cost)
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise FileFault("unreadable", f"{what} is not valid JSON: {e!s:.100}") from None
    limits.spend(-cost)  # whoever asked takes out what it needs, and counts that
    if not isinstance(value, dict):
        raise FileFault("unreadable", f"{what} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value


def _tensor(entry: Any, data: Region) -> tuple[TensorRef, tuple[int, int]]:
    try:
        kind, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = (start, end, *shape)
        is_plain = all(type(v) is int and 0 <= v < 1 << 62 for v in numbers) and len(shape) <= 64
    except (KeyError, TypeError, ValueError):
        raise FileFault("unreadable", "its header entry is damaged") from None
    name = _DTYPES.get(kind) if isinstance(kind, str) else None
    elements = dtype_of(name) if name else None
    if not is_plain or start > end:
        raise FileFault("unreadable", "its header entry has impossible numbers")
    if end > data.size:
        raise FileFault("truncated", f"its bytes end at {end:,}, the file's at {data.size:,}")
    if name is None or elements is None:
        raise FileFault("not_scanned", f"dtype {kind!r:.20} is not known to this torch")
    if name == "float4_e2m1fn_x2" and shape:
        shape = [*shape[:-1], (shape[-1] + 1) // 2]
    if prod(shape) * elements.itemsize != end - start:
        raise FileFault(
            "unreadable", f"shape {shape} of {kind} does not take {end - start:,} bytes"
        )
    storage = StorageRef(f"{start}", name, prod(shape))
    storage.blob = data.blob(start, end - start)
    size = tuple(shape)
    return TensorRef(storage, name, 0, size, row_major(size)), (start, end)


def _check_ranges(
    ranges: list[tuple[int, int, str]], size: int, has_faults: bool
) -> list[tuple[str, str]]:
    """Tensors must be contiguous without overlap, and end at the end of the file."""
    free = 0
    for start, end, name in sorted(ranges):
        if start < free:
            return [("unreadable", f"{name!r:.120}: overlaps the tensor before it")]
        if start > free and not has_faults:
            return [
                (
                    "unreadable",
                    f"{name!r:.120}: {start - free:,} bytes before it belong to no tensor",
                )
            ]
        free = max(free, end)
    if free < size and not has_faults:
        return [("unreadable", f"{size - free:,} bytes at the end belong to no tensor")]
    return []

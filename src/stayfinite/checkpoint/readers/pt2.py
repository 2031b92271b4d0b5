"""`.pt2` archives of torch.export: raw tensors with their shapes in JSON, and torch files inside.

Archives from torch before 2.7 contain only torch files.
"""

from __future__ import annotations

from typing import Any

from ..limits import FileFault, Limits
from ..measure import dtype_of
from ..values import StorageRef, TensorRef
from ..zips import Archive
from . import nested
from .base import Contents
from .safetensors import load_json

__all__ = ["is_pt2", "read_archive"]

_SUFFIXES = ("_weights_config.json", "_constants_config.json")
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
}  # fmt: skip
_MAX_INNER = 1 << 29


def is_pt2(archive: Archive) -> bool:
    return any(
        name.endswith((*_SUFFIXES, "archive_format", "serialized_state_dict.pt"))
        for name in archive.entries
    )


def read_archive(archive: Archive) -> Contents:
    """The tensors of an exported program; its code is not read."""
    contents = Contents("pt2", findings=list(archive.findings))
    limits = archive.limits
    for name in archive.entries:
        limits.tick()
        if name.endswith(_SUFFIXES):
            folder = name.rpartition("/")[0]
            label = "" if name.endswith(_SUFFIXES[0]) else "constants"
            contents.roots.append((label, _listed(archive, name, folder, contents)))
        elif name.endswith(".pt"):
            label = name.rpartition("/")[2].removesuffix(".pt").removeprefix("serialized_")
            contents.roots.append((label, _inner(archive, name, limits, contents)))
    contents.verify = lambda: [n for n in archive.entries if not archive.has_good_checksum(n)]
    return contents


def _listed(archive: Archive, name: str, folder: str, contents: Contents) -> dict[str, Any]:
    raw = bytes(archive.read(name, archive.limits.max_json))
    entries = load_json(raw, archive.limits, name).get("config")
    tree: dict[str, Any] = {}
    for label, entry in entries.items() if isinstance(entries, dict) else ():
        archive.limits.tick()
        try:
            tree[label] = _tensor(archive, entry, folder, contents)
        except FileFault as e:
            contents.findings.append((e.code, f"{label!r:.120}: {e}"))
    return tree


def _tensor(archive: Archive, entry: Any, folder: str, contents: Contents) -> Any:
    try:
        path, meta = f"{folder}/{entry['path_name']}", entry["tensor_meta"]
        sizes, strides = ([d["as_int"] for d in meta[k]] for k in ("sizes", "strides"))
        offset = meta["storage_offset"]["as_int"]
        numbers = [offset, *sizes, *strides]
    except (KeyError, TypeError):
        raise FileFault("unreadable", "its entry is damaged") from None
    if path not in archive.entries:
        raise FileFault("truncated", "its bytes are missing")
    if entry.get("use_pickle"):
        return _inner(archive, path, archive.limits, contents)
    name = _DTYPES.get(meta.get("dtype")) if isinstance(meta.get("dtype"), int) else None
    elements = dtype_of(name) if name else None
    if name is None or elements is None:
        raise FileFault("not_scanned", f"dtype {meta.get('dtype')!r:.20} is not known here")
    if len(sizes) > 64 or not all(type(v) is int and 0 <= v < 1 << 62 for v in numbers):
        raise FileFault("unreadable", "its entry has impossible numbers")
    blob = archive.blob(path)
    storage = StorageRef(path, name, blob.size // elements.itemsize)
    storage.blob = blob
    return TensorRef(storage, name, offset, tuple(sizes), tuple(strides))


def _inner(archive: Archive, name: str, limits: Limits, contents: Contents) -> Any:
    """A torch file inside the archive; its findings count for the archive."""
    try:
        return nested.read(memoryview(bytearray(archive.read(name, _MAX_INNER))), limits, contents)
    except (FileFault, ValueError) as e:
        contents.findings.append((getattr(e, "code", "unreadable"), f"{name!r:.120}: {e}"))
        return None

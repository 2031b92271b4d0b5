"""`torch.distributed.checkpoint` folders: a pickled index, and files of small torch files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ..files import MappedFile, Region
from ..limits import FileFault, LimitError, Limits
from ..pickles import Machine
from ..places import Place, open_source
from ..tree import resolve
from ..values import ObjectKey
from ..zips import Archive
from . import legacy, safetensors, torchzip
from .base import Contents

__all__ = ["Item", "Metadata", "read_items", "read_metadata"]


_MAX_INDEX = 256 << 20


@dataclass(frozen=True)
class Item:
    """A piece of one entry of the state: its position in a file, and in the whole."""

    name: str
    shard: tuple[int, ...]
    start: int
    length: int


@dataclass
class Metadata:
    """The folder's index."""

    contents: Contents
    items: dict[str, list[Item]] = field(default_factory=dict)
    """By file name."""


def read_metadata(folder: Place, limits: Limits) -> Metadata:
    """The index of a folder, from its `.metadata`."""
    contents = Contents("dcp metadata")
    with open_source(folder / ".metadata") as file:
        if file.size > _MAX_INDEX:
            raise LimitError(f"`.metadata` has {file.size:,} bytes")
        limits.spend(file.size)
        root = contents.run(Machine(bytearray(Region.of(file).read(0, file.size)), limits))
    index = Metadata(contents)
    storage = resolve(root, "storage_data")
    pairs = _index_pairs(storage)
    if root is not None and pairs is None:
        contents.findings.append(("unreadable", "`.metadata` holds no list of stored pieces"))
    for key, info in pairs or ():
        item, file_name = _item(key, info)
        if item is None or file_name is None:
            contents.findings.append(("unreadable", "`.metadata` has a damaged entry"))
            break
        index.items.setdefault(file_name, []).append(item)
    return index


def _index_pairs(storage: Any) -> list[tuple[Any, Any]] | None:
    """The pairs of a dict whose keys are objects."""
    if not isinstance(storage, dict):
        return None
    return [(k.value, v) for k, v in storage.items() if isinstance(k, ObjectKey)]


def _item(key: Any, info: Any) -> tuple[Item | None, str | None]:
    name, path = resolve(key, "fqn"), resolve(info, "relative_path")
    start, length = resolve(info, "offset"), resolve(info, "length")
    shard = resolve(key, "offset")
    if not isinstance(name, str) or not isinstance(path, str):
        return None, None
    if type(start) is not int or type(length) is not int or start < 0 or length < 0:
        return None, None
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or path.startswith(("/", "\\")):
        return None, None
    position = tuple(v for v in shard if type(v) is int) if isinstance(shard, (tuple, list)) else ()
    return Item(name, position, start, length), path


def read_items(file: MappedFile, items: list[Item], limits: Limits) -> Contents:
    """The pieces in one `.distcp` file, each of which is a file."""
    contents = Contents("dcp")
    limits = limits.inner()
    counts: dict[str, int] = {}
    for item in items:
        counts[item.name] = counts.get(item.name, 0) + 1
    for item in items:
        label = item.name
        if counts[item.name] > 1 or any(item.shard):
            label = f"{item.name} (shard at {list(item.shard)})"
        if item.start + item.length > file.size:
            contents.findings.append(("truncated", f"{label}: the file ends before its bytes"))
            continue
        limits.tick()
        region = Region.of(file).part(item.start, item.start + item.length)
        try:
            inner = _read_piece(region, limits)
        except FileFault as e:
            contents.findings.append((e.code, f"{label}: {e}"))
            continue
        contents.findings.extend((code, f"{label}: {message}") for code, message in inner.findings)
        contents.placeholders.update(inner.placeholders)
        contents.roots.extend((label, root) for _, root in inner.roots)
    return contents


def _read_piece(region: Region, limits: Limits) -> Contents:
    head = region.read(0, 64)
    if torchzip.matches(head):
        return torchzip.read_archive(Archive(region, limits))
    if legacy.matches(head):
        return legacy.read_region(region, limits)
    if safetensors.matches(head):
        return safetensors.read_region(region, limits)
    raise FileFault("unreadable", "its bytes are in no known format")

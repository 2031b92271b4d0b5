"""Zip archives: torch checkpoints since 1.6, TorchScript, and numpy's npz."""

from __future__ import annotations

from typing import Any

from ..files import Blob, MappedFile, Region
from ..limits import FileFault, Limits
from ..pickles import Machine
from ..zips import Archive
from . import nested, pt2
from .arrays import read_npy
from .base import Contents
from .storages import StorageTable, attach

__all__ = ["matches", "read", "read_archive", "read_embedded"]

_MAX_PICKLE = 1 << 30
_MAX_PICKLES = 16


def matches(head: bytes) -> bool:
    return head[:4] in (b"PK\x03\x04", b"PK\x05\x06")


def read(file: MappedFile, limits: Limits) -> Contents:
    return read_archive(Archive(Region.of(file), limits))


def read_embedded(view: memoryview, limits: Limits, depth: int) -> Contents:
    return read_archive(Archive(Region(view), limits))


def read_archive(archive: Archive) -> Contents:
    """A torch or npz archive, wherever its bytes lie."""
    pickles = sorted((n for n in archive.entries if n.rpartition("/")[2] == "data.pkl"), key=len)
    if pickles:
        # Loaders differ in which one they use, so a second one could hide something.
        return _read_torch(archive, [p.removesuffix("data.pkl") for p in pickles[:_MAX_PICKLES]])
    if any(n.endswith(".npy") for n in archive.entries):
        return _read_npz(archive)
    if pt2.is_pt2(archive):
        return pt2.read_archive(archive)
    raise FileFault(
        "unreadable", "a zip archive, but neither a torch checkpoint nor an npz nor a pt2"
    )


def _read_torch(archive: Archive, prefixes: list[str]) -> Contents:
    is_script = f"{prefixes[0]}constants.pkl" in archive.entries
    contents = Contents(
        "torchscript" if is_script else "torch zip", findings=list(archive.findings)
    )
    parts = [("" if p == prefixes[0] else p.strip("/"), p, "data.pkl", "data/") for p in prefixes]
    if is_script:
        parts.append(("constants", prefixes[0], "constants.pkl", "constants/"))
    blobs: dict[str, Blob] = {}
    for label, prefix, pickle_name, folder in parts:
        is_big = _is_big_endian(archive, prefix)
        root = _read_pickle(archive, prefix, pickle_name, folder, is_big, contents, blobs)
        contents.roots.append((label, root))
    contents.verify = lambda: [n for n in archive.entries if not archive.has_good_checksum(n)]
    return contents


def _is_big_endian(archive: Archive, prefix: str) -> bool:
    name = f"{prefix}byteorder"
    return name in archive.entries and bytes(archive.read(name, 64)).strip() == b"big"


def _read_pickle(
    archive: Archive,
    prefix: str,
    pickle_name: str,
    folder: str,
    is_big: bool,
    contents: Contents,
    blobs: dict[str, Blob],
) -> Any:
    data = archive.read(f"{prefix}{pickle_name}", _MAX_PICKLE)
    table = StorageTable()
    machine = Machine(
        data,
        archive.limits,
        persistent=table.load,
        nested=lambda raw: nested.read(raw, archive.limits, contents),
        is_torchscript=contents.format == "torchscript",
    )
    root = contents.run(machine)
    num_before = len(archive.findings)
    archive.limits.part("its list of storages")
    for ref in table.refs:
        name = f"{prefix}{folder}{ref.key}"
        if name not in archive.entries and contents.format == "torchscript":
            name = f"{prefix}{ref.key}"
        archive.limits.tick()
        try:
            if name not in blobs and name in archive.entries:
                blobs[name] = archive.blob(name, is_big_endian=is_big)
            attach(ref, blobs.get(name))
        except FileFault as e:
            contents.findings.append((e.code, str(e)))
    contents.findings.extend(archive.findings[num_before:])
    return root


def _read_npz(archive: Archive) -> Contents:
    contents = Contents("npz", findings=list(archive.findings), hint="data")
    tree: dict[str, Any] = {}
    for name in archive.entries:
        archive.limits.tick()
        if not name.endswith(".npy"):
            contents.notes.append(f"{name!r:.80} in the archive is not an array")
            continue
        try:
            tree[name.removesuffix(".npy")] = read_npy(archive.region_of(name))
        except FileFault as e:
            contents.findings.append((e.code, f"{name.removesuffix('.npy')!r:.80}: {e}"))
    contents.roots.append(("", tree))
    contents.verify = lambda: [n for n in archive.entries if not archive.has_good_checksum(n)]
    return contents

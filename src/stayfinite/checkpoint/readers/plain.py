"""Plain pickles: `pickle.dump` of arrays, state dicts or anything else."""

from __future__ import annotations

from ..files import MappedFile, Region
from ..limits import Limits
from ..pickles import Machine, looks_like_pickle
from . import nested
from .base import Contents
from .storages import StorageTable, pickle_bytes

__all__ = ["matches", "read"]

_MAX_PICKLES = 100


def matches(head: bytes) -> bool:
    return looks_like_pickle(head)


def read(file: MappedFile, limits: Limits) -> Contents:
    contents = Contents("pickle")
    data = pickle_bytes(Region.of(file), limits)
    machine = Machine(
        data,
        limits,
        persistent=StorageTable().load,
        nested=lambda raw: nested.read(raw, limits, contents),
    )
    contents.roots.append(("", contents.run(machine)))
    while machine.pos < file.size and len(contents.roots) < _MAX_PICKLES and not contents.findings:
        if not looks_like_pickle(bytes(data[machine.pos : machine.pos + 3])):
            break
        contents.roots.append((str(len(contents.roots)), contents.run(machine)))
    if machine.pos < file.size and not contents.findings:
        contents.notes.append(f"{file.size - machine.pos:,} bytes at the end are no pickle")
    return contents

"""The reader interface and the list of known readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ..files import MappedFile
from ..limits import FileFault, Limits
from ..machine import Machine

__all__ = ["Contents", "Reader", "find_reader", "register_reader", "unregister_reader"]


@dataclass
class Contents:
    """The contents of a file: named trees of containers, numbers and tensor references."""

    format: str
    roots: list[tuple[str, Any]] = field(default_factory=list)
    """(name, tree); the name is "" for the only tree of an ordinary checkpoint."""
    findings: list[tuple[str, str]] = field(default_factory=list)
    """(code, message)"""
    placeholders: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hint: str = ""
    """The role of all its tensors if the format determines it (npy: "data")."""
    verify: Callable[[], list[str]] | None = None
    """Names of the parts whose checksum does not match; None when the format has no checksums."""

    def run(self, machine: Machine, num_pickles: int = 1) -> Any:
        """The next pickle, or the next few as a list; None if it cannot be read.

        Findings are kept even if the pickle is broken, because the real unpickler would already have run it.
        """
        roots: list[Any] = []
        machine.limits.part("its pickle")
        try:
            for _ in range(num_pickles):
                roots.append(machine.load())
        except FileFault as e:
            self.findings.append((e.code, str(e)))
        self.findings.extend(o for o in machine.objections if o not in self.findings)
        self.placeholders.update(machine.opaque)
        roots += [None] * (num_pickles - len(roots))
        return roots if num_pickles > 1 else roots[0]


@dataclass(frozen=True)
class Reader:
    """One format: how to recognize it by its first bytes, and how to read it."""

    name: str
    matches: Callable[[bytes], bool]
    """Given the first 64 bytes."""
    read: Callable[[MappedFile, Limits], Contents]


_READERS: list[Reader] = []


def register_reader(reader: Reader) -> Reader:
    """Add a format. The last one added is tried first.

    >>> from stayfinite.checkpoint import Contents, Reader, register_reader, unregister_reader
    >>> mine = Reader("mine", lambda head: head[:4] == b"MINE", lambda f, limits: Contents("mine"))
    >>> _ = register_reader(mine)
    >>> unregister_reader("mine")
    """
    if not isinstance(reader, Reader):
        raise UsageError(f"a reader must be a `Reader`, got {type(reader).__name__}")
    if not isinstance(reader.name, str) or not reader.name.strip():
        raise UsageError(f"a reader needs a name, got {reader.name!r}")
    for part in ("matches", "read"):
        if not callable(getattr(reader, part)):
            raise UsageError(f"reader {reader.name!r}: `{part}` must be callable")
    if any(r.name == reader.name for r in _READERS):
        known = ", ".join(r.name for r in _READERS)
        raise UsageError(f"a reader named {reader.name!r} is already registered; known: {known}")
    _READERS.insert(0, reader)
    return reader


def unregister_reader(name: str) -> None:
    """Remove a format; an unknown name lists the existing ones."""
    for reader in _READERS:
        if reader.name == name:
            _READERS.remove(reader)
            return
    raise UsageError(f"no reader named {name!r}; known: {', '.join(r.name for r in _READERS)}")


def find_reader(head: bytes) -> Reader | None:
    """The reader for a file that begins with `head`."""
    return next((r for r in _READERS if r.matches(head)), None)

"""A checkpoint stored as bytes inside a pickle, as `pickle.dump(tensor)` writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..limits import FileFault, LimitError, Limits
from .base import Contents

__all__ = ["embed", "read"]

_MAX_NESTING = 4
Matches = Callable[[bytes], bool]
ReadInner = Callable[[memoryview, Limits, int], Contents]
_formats: list[tuple[Matches, ReadInner]] = []


def embed(matches: Matches, read_inner: ReadInner) -> None:
    """Allow files of this format inside others; `read_inner` limits the depth."""
    _formats.append((matches, read_inner))


def read(raw: Any, limits: Limits, outer: Contents, depth: int = 0) -> Any:
    """The tree in a file embedded as bytes; its findings are added to those of the outer file."""
    if not isinstance(raw, (bytes, memoryview)):
        raise ValueError("an embedded file that is not bytes")
    if len(outer.notes) > 1000 or depth > _MAX_NESTING:
        raise LimitError(f"files inside files, more than {_MAX_NESTING} deep")
    limits = limits.inner()
    view = memoryview(bytearray(raw)) if isinstance(raw, bytes) else raw
    head = bytes(view[:64])
    found = next((read_inner for matches, read_inner in _formats if matches(head)), None)
    if found is None:
        raise FileFault("unreadable", "an embedded tensor in a format that is not known")
    inner = found(view, limits, depth + 1)
    outer.findings.extend(inner.findings)
    outer.placeholders.update(inner.placeholders)
    return inner.roots[0][1]

"""A whole checkpoint inside a pickle: what `pickle.dump(tensor)` writes, as bytes."""

from __future__ import annotations

from typing import Any

from ..limits import FileFault, LimitError, Limits
from .base import Contents

__all__ = ["read"]

_MAX_NESTING = 4


def read(raw: Any, limits: Limits, outer: Contents, depth: int = 0) -> Any:
    """The tree in a file embedded as bytes; its findings go to the file round it."""
    from ..files import Region
    from ..zips import Archive
    from . import legacy, torchzip

    if not isinstance(raw, (bytes, memoryview)):
        raise ValueError("an embedded file that is not bytes")
    if len(outer.notes) > 1000 or depth > _MAX_NESTING:
        raise LimitError(f"files inside files, more than {_MAX_NESTING} deep")
    limits = limits.inner()
    view = memoryview(bytearray(raw)) if isinstance(raw, bytes) else raw
    head = bytes(view[:64])
    if torchzip.matches(head):
        inner = torchzip.read_archive(Archive(Region(view), limits))
    elif legacy.matches(head):
        inner = legacy.read_region(Region(view), limits, depth + 1)
    else:
        raise FileFault("unreadable", "an embedded tensor in a format that is not known")
    outer.findings.extend(inner.findings)
    outer.placeholders.update(inner.placeholders)
    return inner.roots[0][1]

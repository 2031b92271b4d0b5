"""Torch's storages: from the persistent id in a pickle to the bytes in the file."""

from __future__ import annotations

from typing import Any

from ..builders import storage_dtype
from ..files import Blob, Region
from ..limits import FileFault, LimitError, Limits
from ..measure import dtype_of
from ..values import Opaque, StorageRef

__all__ = ["StorageTable", "attach", "pickle_bytes"]

_COPY_BELOW = 1 << 20


def pickle_bytes(region: Region, limits: Limits) -> bytearray | memoryview:
    """The bytes of a file that begins with pickles whose length is recorded nowhere."""
    is_remote = region.file is not None and region.file.is_remote
    if region.size < _COPY_BELOW or is_remote:
        if region.size > limits.max_memory // 2:
            raise LimitError("all of this format must be fetched to be read: copy the file first")
        limits.spend(region.size)
        return bytearray(region.read(0, region.size))
    with region.held(0, region.size) as view:
        return view


class StorageTable:
    """The storages that a pickle names, one object for each key and dtype."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str | None, int], StorageRef] = {}

    def load(self, pid: Any) -> Any:
        """Torch's persistent id: ("storage", class, key, location, number of elements[, view])."""
        if not isinstance(pid, tuple) or not pid:
            raise ValueError("a persistent id that torch does not write")
        if pid[0] == "module":
            return Opaque("module source", ())
        if pid[0] != "storage" or len(pid) < 5:
            raise ValueError("a persistent id that torch does not write")
        kind, key, _, count = pid[1:5]
        if type(count) is not int or not 0 <= count < 1 << 60:
            raise ValueError("a storage of an impossible size")
        view = pid[5] if len(pid) > 5 and isinstance(pid[5], tuple) else None
        offset = view[1] if view and type(view[1]) is int and view[1] >= 0 else 0
        dtype = storage_dtype(kind)
        found = self.by_key.get((str(key), dtype, offset))
        if found is None:
            found = self.by_key[str(key), dtype, offset] = StorageRef(
                str(key), dtype, count, offset
            )
        found.num_elements = max(found.num_elements, count)
        return found

    @property
    def refs(self) -> list[StorageRef]:
        return list(self.by_key.values())


def attach(ref: StorageRef, blob: Blob | None) -> None:
    """Assign the bytes of a storage; too few of them is a finding."""
    if blob is None:
        raise FileFault("truncated", f"the bytes of storage {ref.key!r:.60} are missing")
    elements = dtype_of(ref.dtype) if ref.dtype else None
    width = elements.itemsize if elements else 1
    if (ref.view_offset + ref.num_elements) * width > blob.size:
        raise FileFault(
            "truncated",
            f"storage {ref.key!r:.60} has {blob.size:,} bytes of {ref.num_elements * width:,}",
        )
    ref.blob = blob

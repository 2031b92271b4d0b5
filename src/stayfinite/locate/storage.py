"""Tracks the last writer of each storage. Tensors are identified by their storage, because autograd passes saved
values to the backward as new tensor objects over the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..numerics.health import dense_parts

__all__ = ["Writers", "address"]


@dataclass(frozen=True)
class _Write:
    note: int
    start: int
    stop: int
    exact: tuple[int, tuple[int, ...], tuple[int, ...]]


def address(part: Tensor) -> int:
    """The id of the memory; of the storage object for a wrapper tensor without memory."""
    storage = part.untyped_storage()
    try:
        return storage.data_ptr()
    except RuntimeError:
        return int(storage._cdata)


def _extent(t: Tensor) -> tuple[int, int]:
    start = int(t.storage_offset()) * t.element_size()
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()) if size)
    return start, start + (last + 1) * t.element_size()


class Writers:
    """The bad writes to each storage. A finite write over the same region removes them."""

    def __init__(self) -> None:
        self._writes: dict[int, list[_Write]] = {}

    def keys_of(self, tensor: Tensor) -> list[int]:
        """The storages of a tensor (two for a sparse one)."""
        return [address(p) for p in dense_parts(tensor)]

    def write(self, tensor: Tensor, note: int, whole: bool) -> None:
        """Record that operator `note` wrote a bad value; `whole` if the storage is new."""
        for part in dense_parts(tensor):
            key = address(part)
            start, stop = _extent(part)
            exact = (int(part.storage_offset()), tuple(part.shape), tuple(part.stride()))
            kept = [] if whole else [w for w in self._writes.get(key, []) if w.exact != exact]
            self._writes[key] = [*kept, _Write(note, start, stop, exact)]

    def clear(self, tensor: Tensor, whole: bool) -> None:
        """Record a finite write."""
        for part in dense_parts(tensor):
            key = address(part)
            if key not in self._writes:
                continue
            start, stop = _extent(part)
            if whole:
                del self._writes[key]
            elif part.is_contiguous():
                self._writes[key] = [
                    w for w in self._writes[key] if not (start <= w.start and w.stop <= stop)
                ]

    def find(self, tensor: Tensor) -> list[int]:
        """The bad writes that this tensor overlaps, latest first."""
        found: list[int] = []
        for part in dense_parts(tensor):
            start, stop = _extent(part)
            for w in reversed(self._writes.get(address(part), [])):
                if w.start < stop and start < w.stop and w.note not in found:
                    found.append(w.note)
        return found

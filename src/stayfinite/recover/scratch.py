"""A snapshot in a file without a name, for states that would take a large part of the training's memory."""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .snapshot import PART_LENGTH, Snapshot, has_disk_room

__all__ = ["ScratchSnapshot"]

_MOST_AT_ONCE = 1 << 28
_BYTES_PER_SECOND = 2e8
"""A snapshot is charged to the budget as if the disk were no faster, which bounds what is written in the long run."""


class ScratchSnapshot(Snapshot):
    """The same with the values in a temporary file, which the system deletes with the process however it ends.

    The file is overwritten in place, and neither direction needs memory for more than one tensor. Values that are no plain
    memory (sparse, quantized, a class of their own) stay in memory, and all of them do once the disk is full.

    >>> weight = torch.ones(3)
    >>> kept = ScratchSnapshot(Path(tempfile.gettempdir()))
    >>> kept.take(0, [weight], [], [])
    >>> _ = weight.zero_()
    >>> kept.restore()
    >>> weight
    tensor([1., 1., 1.])
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._open()
        self._places: dict[int, tuple[int, torch.Size]] = {}
        """The offset in the file and the shape of each tensor, by its position."""
        self._others = Snapshot()
        """The values that stay in memory."""
        self._is_full = False

    def _open(self) -> None:
        self._owner = os.getpid()
        self._file = tempfile.TemporaryFile(buffering=0, dir=self.folder)  # noqa: SIM115
        # Closed without the warning that Python has for a file that is only forgotten.
        self._close = weakref.finalize(self, self._file.close)
        self.size = 0
        """Its length in bytes."""

    @staticmethod
    def in_one_of(folders: Sequence[Path | None], num_bytes: int) -> ScratchSnapshot | None:
        """In the first folder with room; None without one."""
        for folder in folders:
            try:
                if folder is not None and has_disk_room(folder, num_bytes):
                    return ScratchSnapshot(folder)
            except OSError:
                continue
        return None

    @property
    def least_seconds(self) -> float:
        return self.size / _BYTES_PER_SECOND

    @property
    def is_taken(self) -> bool:
        """Not in a forked process, whose file is its parent's."""
        return super().is_taken and (self._is_full or self._owner == os.getpid())

    def _keep(self, tag: int, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        self.tag = -1  # what is overwritten half-way must not be restored
        self._live = list(tensors)
        if not self._is_full:
            try:
                if self._owner != os.getpid():
                    self._open()
                self._write()
                return
            except OSError:  # no room any more, or the disk has failed
                self._is_full = True
                self._close()
        self._places, self.size, self._live = {}, 0, []
        super()._keep(tag, tensors, names)

    def _write(self) -> None:
        places, end = {}, 0
        for i, t in enumerate(self._live):
            if _is_plain(t):
                places[i] = end, t.shape
                end += t.numel() * t.element_size()
        if end > self.size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), 0, end)
        self._places, self.size = places, end
        self._others.take(0, [t for i, t in enumerate(self._live) if i not in places], [], [])
        for i, (offset, _) in places.items():
            self._file.seek(offset)
            for part in _parts_on_host(self._live[i].detach()):
                self._write_whole(part)

    def _write_whole(self, part: Tensor) -> None:
        room = _bytes_of(part)
        done = 0
        while done < len(room):
            done += self._file.write(room[done : done + _MOST_AT_ONCE])

    def _put_back(self) -> None:
        if self._is_full:
            super()._put_back()
            return
        self._others.restore()
        for i, (_, shape) in self._places.items():
            live = self._live[i].detach()
            if live.shape != shape:
                self._live[i].data = live = torch.empty(shape, dtype=live.dtype, device=live.device)
            if live.is_contiguous():
                self._fill(i, live.view(-1))
            else:
                flat = torch.empty(live.numel(), dtype=live.dtype, device="cpu")
                live.copy_(self._fill(i, flat).view(live.shape))

    def _is_at_hand(self, position: int) -> bool:
        if self._is_full:
            return super()._is_at_hand(position)
        live = self._live[position]
        place = self._places.get(position)
        return place is not None and place[1] == live.shape and live.device.type == "cpu"

    def _kept_parts(self, position: int) -> Iterator[Tensor]:
        """Each part is in the same memory as the last one."""
        if self._is_full:
            yield from super()._kept_parts(position)
            return
        offset, shape = self._places[position]
        self._file.seek(offset)
        length, dtype = shape.numel(), self._live[position].dtype
        stage = torch.empty(min(PART_LENGTH, length), dtype=dtype, device="cpu")
        for at in range(0, length, PART_LENGTH):
            part = stage[: min(PART_LENGTH, length - at)]
            self._read_whole(_bytes_of(part))
            yield part

    def _fill(self, position: int, flat: Tensor) -> Tensor:
        """Copied from a small buffer, so that torch notices the write."""
        for to, part in zip(flat.split(PART_LENGTH), self._kept_parts(position)):
            to.copy_(part)
        return flat

    def _read_whole(self, room: memoryview) -> None:
        done = 0
        while done < len(room):
            num = self._file.readinto(room[done:])
            if not num:
                raise OSError(f"a temporary file in {self.folder} was cut off")
            done += num

    def drop(self) -> None:
        super().drop()
        self._others.drop()
        self._places, self.size = {}, 0
        if not self._is_full and self._owner == os.getpid():
            self._file.truncate(0)


def _is_plain(t: Tensor) -> bool:
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout == torch.strided
        and t.device.type != "meta"
        and not (t.is_quantized or t.is_conj() or t.is_neg())
    )


def _parts_on_host(t: Tensor) -> Iterator[Tensor]:
    flat = t.contiguous().view(-1)
    if flat.device.type == "cpu":
        yield flat
    elif flat.numel():
        yield from (part.cpu() for part in flat.split(PART_LENGTH))


def _bytes_of(t: Tensor) -> memoryview:
    num = t.numel() * t.element_size()
    return memoryview((ctypes.c_char * num).from_address(t.data_ptr())).cast("B")

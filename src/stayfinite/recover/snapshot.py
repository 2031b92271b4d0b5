"""A copy of everything that a step can change, in preallocated memory or in a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..devices import room_on_host
from ..private import make_folder
from ..putting_back import put_back
from .atomic import atomic_path

__all__ = ["PART_LENGTH", "SNAPSHOT_KIND", "DiskSnapshot", "Snapshot", "has_disk_room"]

SNAPSHOT_KIND = "stayfinite.snapshot"
PART_LENGTH = 1 << 18
Capture = Callable[[], Callable[[], None]]
"""Saves current values, and returns a function that restores them."""


class Snapshot:
    """Copies tensors in memory; later calls of `take` reuse the memory.

    `tensors` are the tensors to copy (they may be other objects in each call, as optimizer state is after the first step);
    `small` are captures of everything else.
    """

    def __init__(self) -> None:
        self._live: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._small: list[Callable[[], None]] = []
        self._absent: list[tuple[dict[Any, Any], set[Any]]] = []
        self._homes: list[tuple[dict[Any, Any], Any, dict[Any, Any], dict[Any, Tensor]]] = []
        """(state, key, entry, its tensors): the entries of the optimizers' state, by identity."""
        self.tag: int = -1

    @property
    def is_taken(self) -> bool:
        return self.tag >= 0

    @property
    def least_seconds(self) -> float:
        """What one copy costs at least, whatever the clock says."""
        return 0.0

    def positions(self) -> dict[int, int]:
        """The position of each tensor, by id."""
        return {id(t): i for i, t in enumerate(self._live)}

    @torch.no_grad()
    def change_of(self, position: int) -> Tensor | None:
        """The norm of a tensor's change since the copy, computed in parts; None if that takes a transfer to its device."""
        live = self._live[position]
        if not self._is_at_hand(position):
            return None
        # A difference of the whole tensor would need memory for it.
        parts = live.detach().reshape(-1).split(PART_LENGTH)
        pairs = zip(parts, self._kept_parts(position))
        norms = [torch.linalg.vector_norm((a - b).float()) for a, b in pairs]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else live.new_zeros(())

    def _is_at_hand(self, position: int) -> bool:
        if position >= len(self._kept):
            return False
        kept, live = self._kept[position], self._live[position]
        return kept.device == live.device and kept.shape == live.shape

    def _kept_parts(self, position: int) -> Iterator[Tensor]:
        """The copy of a tensor, flat and in parts of `PART_LENGTH`."""
        kept = self._kept[position]
        yield from kept.reshape(-1).split(PART_LENGTH)

    @torch.no_grad()
    def take(
        self,
        tag: int,
        tensors: Sequence[Tensor],
        small: Sequence[Capture],
        dicts: Sequence[dict[Any, Any]],
        names: Sequence[str] = (),
    ) -> None:
        """Take the copy. `dicts` are the optimizers' states: entries that are added later are removed by `restore`."""
        self._keep(tag, tensors, names)
        self.retake_small(small)
        self._homes = [
            (d, key, e, {k: v for k, v in e.items() if isinstance(v, Tensor)})
            for d in dicts
            for key, e in d.items()
            if isinstance(e, dict)
        ]
        self._absent = [(d, set(d)) for d in (*dicts, *(e for _, _, e, _ in self._homes))]
        self.tag = tag

    def _keep(self, tag: int, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        if len(tensors) != len(self._live) or any(a is not b for a, b in zip(tensors, self._live)):
            old = {id(t): kept for t, kept in zip(self._live, self._kept)}
            # New moments need memory of their own; what there is for the weights is used again.
            self._kept = [_room_for(t, old.pop(id(t), None)) for t in tensors]
            self._live = list(tensors)
        with torch._C.DisableTorchFunctionSubclass():
            for i, (kept, live) in enumerate(zip(self._kept, self._live)):
                if kept.shape != live.shape:  # an observer resizes its statistics
                    self._kept[i] = _room_for(live)
        _copy_all(self._kept, self._live)

    def _put_back(self) -> None:
        _copy_all(self._live, self._kept)

    def retake_small(self, small: Sequence[Capture]) -> None:
        """Update only the captures: learning rates, scheduler, scaler."""
        self._small = [capture() for capture in small]

    def add(self, capture: Capture) -> None:
        """Add a capture of an object that was found later and has not changed since."""
        self._small.append(capture())

    @torch.no_grad()
    def restore(self) -> None:
        """Restore all values."""
        for state, keys in self._absent:
            for key in [k for k in state if k not in keys]:
                del state[key]
        for state, key, entry, held in self._homes:
            state[key] = entry  # an optimizer may replace its tensors in every step
            entry.update(held)
        put_back(self._put_back, *self._small)

    def drop(self) -> None:
        """Drop the copies."""
        self._live, self._kept, self._small, self._absent, self._homes = [], [], [], [], []
        self.tag = -1


class DiskSnapshot(Snapshot):
    """The same with the tensors in one file, for models whose copy does not fit into memory.

    The file is replaced in one step, so a process that dies while writing leaves the previous one. It contains every tensor
    by name, and `torch.load(path)` reads it without stayfinite.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)

    def _keep(self, tag: int, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        self._live = list(tensors)
        named = names if len(names) == len(tensors) else [str(i) for i in range(len(tensors))]
        held = {f"{i} {n}": t.detach() for i, (n, t) in enumerate(zip(named, tensors))}
        make_folder(self.path.parent)
        with atomic_path(self.path) as part:
            # The unpatched function: this file does not go through the save gate.
            save = getattr(torch.save, "__wrapped__", torch.save)
            save({"kind": SNAPSHOT_KIND, "step": tag, "tensors": held}, part)
            part.chmod(0o600)

    def _put_back(self) -> None:
        if not self.is_taken:
            return
        load = getattr(torch.load, "__wrapped__", torch.load)
        held = load(self.path, map_location="cpu", weights_only=True, mmap=True)["tensors"]
        _copy_all(self._live, list(held.values()))

    def drop(self) -> None:
        super().drop()
        self.path.unlink(missing_ok=True)


def has_disk_room(folder: Path, num_bytes: int) -> bool:
    """Whether the file system has room for two copies (the old and the new one) and some more."""
    home = folder
    while not home.exists() and home != home.parent:
        home = home.parent
    return shutil.disk_usage(home).free > 3 * num_bytes


def _room_for(t: Tensor, old: Tensor | None = None) -> Tensor:
    """Memory for a copy of this tensor, that of an older copy if it fits."""
    with torch._C.DisableTorchFunctionSubclass():
        if old is not None and (old.shape, old.dtype, old.layout) == (t.shape, t.dtype, t.layout):
            return old
        return room_on_host(t) if t.device.type not in ("cpu", "meta") else torch.empty_like(t)


def _copy_all(to: list[Tensor], source: list[Tensor]) -> None:
    # The values alone are copied: a class's own `__torch_function__` does not see it.
    with torch._C.DisableTorchFunctionSubclass():
        _copy_values(to, source)


def _copy_values(to: list[Tensor], source: list[Tensor]) -> None:
    pairs = list(zip(to, source))
    for a, b in pairs:
        if a.shape != b.shape:
            a.data = torch.empty_like(b, device=a.device)  # the same object with the shape it had
    plain = [(a, b) for a, b in pairs if _is_fused(a, b)]
    if plain:
        torch._foreach_copy_([a.detach() for a, _ in plain], [b.detach() for _, b in plain])
    if len(plain) != len(to):
        for a, b in pairs:
            if not _is_fused(a, b):
                a.copy_(
                    b.detach()
                )  # not into a.detach(): of a sparse tensor, only the values would be replaced


def _is_fused(a: Tensor, b: Tensor) -> bool:
    """Whether the fused copy takes `b` to `a`."""
    is_dense = type(b) in (Tensor, torch.nn.Parameter) and b.layout == torch.strided
    return is_dense and not (a.is_conj() or b.is_conj())

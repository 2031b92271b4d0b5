"""A copy of everything that a step changes, in preallocated memory or in a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..devices import room_on_host
from ..private import make_folder
from ..putting_back import put_back
from .atomic import atomic_path

__all__ = ["SNAPSHOT_KIND", "DiskSnapshot", "Snapshot"]

SNAPSHOT_KIND = "stayfinite.snapshot"
Capture = Callable[[], Callable[[], None]]
"""Notes how something is, and returns what puts it back."""


class Snapshot:
    """Copies tensors by reference list; `take` again reuses the memory.

    `tensors` yields the tensors to keep (their identity may change between calls, as optimizer
    state does after its first step); `small` are captures of what is no tensor of the model.
    """

    def __init__(self) -> None:
        self._live: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._small: list[Callable[[], None]] = []
        self._absent: list[tuple[dict[Any, Any], set[Any]]] = []
        self._homes: list[tuple[dict[Any, Any], Any, dict[Any, Any], dict[Any, Tensor]]] = []
        """(state, key, entry, its tensors): what the optimizers held, by identity."""
        self.tag: int = -1

    @property
    def is_taken(self) -> bool:
        return self.tag >= 0

    @torch.no_grad()
    def take(
        self,
        tag: int,
        tensors: Sequence[Tensor],
        small: Sequence[Capture],
        dicts: Sequence[dict[Any, Any]],
        names: Sequence[str] = (),
    ) -> None:
        """Copy now. `dicts` are the optimizers' state: entries born later are removed on restore."""
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
            self._live = list(tensors)
            self._kept = [_room_for(t) for t in tensors]
        _copy_all(self._kept, self._live)

    def _put_back(self) -> None:
        _copy_all(self._live, self._kept)

    def retake_small(self, small: Sequence[Capture]) -> None:
        """Only what is no tensor of the model again: learning rates, scheduler, scaler."""
        self._small = [capture() for capture in small]

    def add(self, capture: Capture) -> None:
        """Take in something that turned up later and has not moved since."""
        self._small.append(capture())

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was when taken."""
        for state, keys in self._absent:
            for key in [k for k in state if k not in keys]:
                del state[key]
        for state, key, entry, held in self._homes:
            state[key] = entry  # an optimizer may put new ones there with every step
            entry.update(held)
        put_back(self._put_back, *self._small)

    def drop(self) -> None:
        """Forget the copies."""
        self._live, self._kept, self._small, self._absent, self._homes = [], [], [], [], []
        self.tag = -1


class DiskSnapshot(Snapshot):
    """The same with the tensors in one file, for models whose copy does not fit into memory.

    The file is replaced in one step, so a process that dies while writing leaves the one before; it
    holds every tensor under its name, and `torch.load(path)` reads it with nothing else at hand.
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
            # The plain function: this file is ours, no gate has a say in it.
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

    @staticmethod
    def has_room(folder: Path, num_bytes: int) -> bool:
        """Whether the file system takes two copies (the old one and the new one) and some more."""
        home = folder
        while not home.exists() and home != home.parent:
            home = home.parent
        return shutil.disk_usage(home).free > 3 * num_bytes


def _room_for(t: Tensor) -> Tensor:
    return room_on_host(t) if t.device.type not in ("cpu", "meta") else torch.empty_like(t)


def _copy_all(to: list[Tensor], source: list[Tensor]) -> None:
    plain = [
        (a, b)
        for a, b in zip(to, source)
        if type(b) in (Tensor, torch.nn.Parameter) and b.layout == torch.strided
    ]
    if plain:
        torch._foreach_copy_([a.detach() for a, _ in plain], [b.detach() for _, b in plain])
    if len(plain) != len(to):
        for a, b in zip(to, source):
            if type(b) not in (Tensor, torch.nn.Parameter) or b.layout != torch.strided:
                a.copy_(b.detach())  # not into a.detach(): a sparse one would get new values alone

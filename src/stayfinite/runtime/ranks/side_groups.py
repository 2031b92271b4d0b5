"""Process groups of our own, so that our messages never use the training's.

A collective that is interrupted makes its group unusable. So an investigation communicates over copies of the training's
groups, with their own time limit. They can be discarded: a rank that leaves one closes its connections, which also releases
the ranks that wait in it.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["GroupCopies", "SideGroup", "SideGroupError"]


_PREFIX = "stayfinite/"
_c10d: Any = dist.distributed_c10d if dist.is_available() else None


class SideGroupError(Exception):
    """Raised if the other ranks did not answer in time, or are gone."""


def _by_hand(group: Any, name: str, seconds: float) -> Any:
    """A gloo group of the same processes for our own use."""
    store = _c10d.PrefixStore(f"{_PREFIX}{name}", _c10d._get_default_store())
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    made: Any = dist.ProcessGroup(store, rank, size)
    options = _c10d.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=seconds)
    options._devices = [_c10d.ProcessGroupGloo.create_default_device()]
    options._threads = 2
    gloo = _c10d.ProcessGroupGloo(store, rank, size, options)
    kind = dist.ProcessGroup.BackendType.GLOO
    made._register_backend(torch.device("cpu"), kind, gloo)
    made._set_default_backend(kind)
    made._set_group_name(f"{_PREFIX}{name}")
    return made


class SideGroup:
    """Exchanges objects of any kind between the ranks, on the CPU."""

    def __init__(self, group: Any, name: str, seconds: float) -> None:
        self.name = name
        self._seconds = seconds
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        try:
            self._group = _by_hand(group, name, seconds)
        except RuntimeError as error:
            raise _lost(error, seconds) from None

    def close(self) -> None:
        """Release the ranks that wait here. Explicitly, because the traceback of an error may keep this object alive."""
        self._group = None

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of the group."""
        with _unwatched():
            own = _packed(value)
            sizes = self._all(torch.tensor([own.numel()]))
            padded = torch.zeros(max(int(s) for s in sizes), dtype=torch.uint8)
            padded[: own.numel()] = own
            parts = self._all(padded)
            return [_unpacked(part[: int(size)]) for part, size in zip(parts, sizes)]

    def broadcast(self, root: int, value: Any, more_seconds: float = 0.0) -> Any:
        """The value of one rank of the group, on all ranks; `more_seconds` if it may take long."""
        with _unwatched():
            own = _packed(value) if root == self._rank else torch.zeros(0, dtype=torch.uint8)
            size = torch.tensor([own.numel()])
            self._from(root, size, more_seconds)
            data = own if root == self._rank else torch.zeros(int(size), dtype=torch.uint8)
            self._from(root, data, 0.0)
            return value if root == self._rank else _unpacked(data)

    def _all(self, own: Tensor) -> list[Tensor]:
        found = [torch.zeros_like(own) for _ in range(self._size)]
        try:
            self._group.allgather([found], [own]).wait()
        except RuntimeError as error:
            raise _lost(error, self._seconds) from None
        return found

    def _from(self, root: int, tensor: Tensor, more_seconds: float) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = root
        options.timeout = timedelta(seconds=self._seconds + more_seconds)
        try:
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise _lost(error, self._seconds + more_seconds) from None


class GroupCopies:
    """Copies of the training's groups, for replays."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._copies: dict[str, Any] = {}
        self._name = ""
        self._generation = 0

    def prepare(self, name: str, groups: Sequence[Any]) -> None:
        """Create the copies while all ranks are together. `name`: the same on all of them."""
        if name != self._name:
            self.close()
            self._name, self._generation = name, 0
        for group in groups:
            self.of(group)

    def of(self, group: Any) -> Any:
        """The copy of this group; an unknown group is copied when its ranks reach it."""
        name = group.group_name
        if name not in self._copies:
            self._copies[name] = self._made(group, f"{self._name}/{self._generation}/{name}")
        return self._copies[name]

    def _made(self, group: Any, name: str) -> Any:
        if dist.get_backend(group) == "gloo":
            try:
                made = _by_hand(group, name, self._seconds)
            except RuntimeError as error:
                raise _lost(error, self._seconds) from None
            _c10d._register_process_group(made.group_name, made)
            return made
        return dist.new_group(
            dist.get_process_group_ranks(group), timeout=timedelta(seconds=self._seconds),
            backend=dist.get_backend(group), use_local_synchronization=True,
        )  # fmt: skip

    def renew(self) -> None:
        """Close all copies on all ranks; the next ones get other names."""
        self.close()
        self._generation += 1

    def close(self) -> None:
        """Release the ranks that wait in one of them."""
        copies, self._copies = self._copies, {}
        for copy in copies.values():
            if copy.group_name.startswith(_PREFIX):
                _c10d._unregister_process_group(copy.group_name)
            else:
                copy.abort()


def _unwatched() -> Any:
    """Our own messages are not part of the traced step."""
    return torch.utils._python_dispatch._disable_current_modes()


def _packed(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())


def _lost(error: RuntimeError, seconds: float) -> SideGroupError:
    text = str(error)
    if "Timed out" in text or "timed out" in text.lower():
        return SideGroupError(f"another rank did not answer within {seconds:g} s")
    return SideGroupError("another rank is gone, or has left the investigation")

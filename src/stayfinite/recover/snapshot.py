"""A copy of everything that a step moves, into memory that is allocated once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Snapshot"]


class Snapshot:
    """Copies tensors by reference list; `take` again reuses the memory.

    `tensors` yields the tensors to keep (their identity may change between calls, as optimizer
    state does after its first step); `others` yields (get, set) pairs for small Python state.
    """

    def __init__(self) -> None:
        self._live: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._small: list[tuple[Callable[[Any], None], Any]] = []
        self._absent: list[tuple[dict[Any, Any], set[Any]]] = []
        self.tag: int = -1

    @property
    def is_taken(self) -> bool:
        return self.tag >= 0

    @torch.no_grad()
    def take(
        self,
        tag: int,
        tensors: Sequence[Tensor],
        small: Sequence[tuple[Callable[[], Any], Callable[[Any], None]]],
        dicts: Sequence[dict[Any, Any]],
    ) -> None:
        """Copy now. `dicts` are the optimizers' state: entries born later are removed on restore."""
        if len(tensors) != len(self._live) or any(a is not b for a, b in zip(tensors, self._live)):
            self._live = list(tensors)
            self._kept = [_room_for(t) for t in tensors]
        _copy_all(self._kept, self._live)
        self._small = [(put, copy.deepcopy(get())) for get, put in small]
        self._absent = [(d, set(d)) for d in dicts]
        self.tag = tag

    def add(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Take in something that turned up later and has not moved since."""
        self._small.append((put, copy.deepcopy(get())))

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was when taken."""
        for state, keys in self._absent:
            for key in [k for k in state if k not in keys]:
                del state[key]
        _copy_all(self._live, self._kept)
        for put, value in self._small:
            put(copy.deepcopy(value))

    def drop(self) -> None:
        """Forget the copies."""
        self._live, self._kept, self._small, self._absent, self.tag = [], [], [], [], -1


def _room_for(t: Tensor) -> Tensor:
    if t.device.type == "cuda":
        return torch.empty_like(t, device="cpu", pin_memory=t.layout == torch.strided)
    return torch.empty_like(t)


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
                a.detach().copy_(b.detach())

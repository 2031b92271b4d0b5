"""Asks the store whether every rank saw the same bad step, without a collective.

A rank that alone sees something bad must not start a message: the others continue training, and would not answer or would
misinterpret it. So each rank that sees something sets a mark in the store. The last of them writes "together"; one that has
waited in vain writes "apart". The store keeps only the first answer, which counts for all.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .groups import sequence_of

__all__ = ["absent_ranks", "can_gather", "is_seen_by_all"]

_c10d: Any = dist.distributed_c10d if dist.is_available() else None
_TOGETHER, _APART = "together", "apart"


def can_gather(group: Any) -> bool:
    """Whether the steps of a training have the same numbers on all ranks, and there is a store."""
    return sequence_of(group) >= 0 and _store() is not None


def is_seen_by_all(group: Any, seconds: float) -> bool:
    """Whether all ranks of the group have reached this point, identified by the number of collectives before it.

    All ranks that ask get the same answer. It is False if the store is gone, with the rank that hosted it.
    """
    key = f"stayfinite/seen/{group.group_name}/{sequence_of(group)}"
    store = _store()
    try:
        if store.add(f"{key}/count", 1) == dist.get_world_size(group):
            answer = store.compare_set(f"{key}/answer", "", _TOGETHER)
        else:
            answer = _waited_for(store, f"{key}/answer", seconds)
    except RuntimeError:
        return False
    return bool(answer == _TOGETHER.encode())


def absent_ranks(group: Any, seconds: float) -> list[int] | None:
    """The ranks, counted over all processes, that did not come to this place in time; None where all have.

    The same answer on all that ask; what was answered once holds for as long as there is the group.
    """
    store = _store()
    if store is None:
        return None
    key = f"stayfinite/here/{group.group_name}"
    names = {r: f"{key}/{r}" for r in dist.get_process_group_ranks(group)}
    try:
        store.set(names[dist.get_rank()], "")
        answer = _TOGETHER
        try:
            store.wait(list(names.values()), timedelta(seconds=seconds))
        except RuntimeError:
            answer = _APART
        if store.compare_set(f"{key}/answer", "", answer) == _TOGETHER.encode():
            return None
        return [r for r, name in names.items() if not store.check([name])]
    except RuntimeError:
        return None


def _waited_for(store: Any, key: str, seconds: float) -> bytes:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:
        return bytes(store.compare_set(key, "", _APART))
    return bytes(store.get(key))


def _store() -> Any:
    try:
        return _c10d._get_default_store()
    except (RuntimeError, ValueError):
        return None

"""Asks over the store whether every rank saw the same bad step, without a collective.

A rank that alone sees something bad must not begin to talk: the others go on training and would not answer, or take
it for what they wait for. So each that sees something puts its mark into the store. The last of them to come says
"together"; who has waited in vain says "apart". Whoever says it first says it for all: the store keeps one answer.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .groups import sequence_of

__all__ = ["can_gather", "is_seen_by_all"]

_c10d: Any = dist.distributed_c10d if dist.is_available() else None
_TOGETHER, _APART = "together", "apart"


def can_gather(group: Any) -> bool:
    """Whether places in a training have a number that all ranks count alike, and there is a store."""
    return sequence_of(group) >= 0 and _store() is not None


def is_seen_by_all(group: Any, seconds: float) -> bool:
    """Whether all ranks of the group have come to this place, marked by how many collectives there were before it.

    The same answer on all that ask; False as well where the store is gone, with the rank that kept it.
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

"""What a script's loop does between two optimizer steps."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

__all__ = ["NOTHING", "Turn", "criteria", "first", "heads", "is_in"]

NOTHING = object()


@dataclass
class Turn:
    """What lies between two optimizer steps."""

    items: list[tuple[Any, Any]] = field(default_factory=list)
    num_serves: int = 0
    num_backward: int = 0
    num_steps: int = 0
    losses: list[Tensor] = field(default_factory=list)
    norm: Tensor | None = None
    is_used: bool = False


def criteria() -> list[nn.Module]:
    """Loss modules that the script has made."""
    modules = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    return [m for m in modules if "loss" in type(m).__name__.lower()]


def is_in(owner: Any, owners: list[Any]) -> bool:
    return any(o is owner for o in owners)


def heads(turn: Turn, number: int) -> list[Any]:
    return [o for o, _ in turn.items[:number]]


def first(values: list[Any]) -> Any:
    return values[0] if values else None

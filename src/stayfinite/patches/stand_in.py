"""Objects that stand for one of the training's in a replay. A patch that meets one asks for its original."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["StandIn", "original_of"]


class StandIn:
    """The first base of their classes, so that making such a class runs no `__init_subclass__` of the user's."""

    __slots__ = ()
    stayfinite_original: weakref.ref[Any]

    def __init_subclass__(cls) -> None: ...


def original_of(value: Any) -> Any:
    """The object of the training that this one stands for, or is."""
    return value.stayfinite_original() if isinstance(value, StandIn) else value

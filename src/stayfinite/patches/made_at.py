"""Records where each optimizer, schedule and scaler was created.

Only the file and the line of the callers are kept, never a frame, so nothing of the script is kept alive.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)

from .firewall import Firewall
from .manager import Subscribers, Target

__all__ = ["CallStack", "call_stack", "made_at", "note_made", "targets"]

CallStack = tuple[tuple[str, int, str], ...]
"""(file, line, function) of the callers, innermost first."""

_MOST = 12
_PASSED_BY = ("torch.", "stayfinite.")
_firewall = Firewall("noting where things are made")
_REASON = "where an optimizer, a schedule or a scaler is made is noted, to name the line"
_CLASSES = (
    Optimizer, LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler, torch.amp.GradScaler,
)  # fmt: skip


class _Notes:
    def __init__(self) -> None:
        self.places: weakref.WeakKeyDictionary[Any, CallStack] = weakref.WeakKeyDictionary()
        self.lock = threading.Lock()


_notes = _Notes()


def made_at(value: Any) -> CallStack:
    """The callers of this object's constructor; () if it was not observed."""
    try:
        return _notes.places.get(value, ())
    except Exception:
        return ()


def note_made(value: Any, stack: CallStack) -> None:
    """Only the first record counts, because a constructor may call that of its base class."""
    with _notes.lock, contextlib.suppress(Exception):  # `__hash__` may be defined by the script
        if value not in _notes.places:
            _notes.places[value] = stack


def call_stack(frame: FrameType | None, own: tuple[CodeType, ...] = ()) -> CallStack:
    """The callers from `frame` outwards, without frames of torch, of stayfinite, and of the functions in `own`."""
    found: list[tuple[str, int, str]] = []
    while frame is not None and len(found) < _MOST:
        code = frame.f_code
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(_PASSED_BY) and code not in own:
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def targets() -> list[tuple[Target, Any]]:
    """The constructors to patch, each with its wrapper factory."""
    return [(Target(cls, "__init__", _REASON, "provenance"), _init) for cls in _CLASSES]


def _init(original: Any, subscribers: Subscribers) -> Any:
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        _firewall.call(_note, made, sys._getframe(1))
        original(made, *args, **kwargs)

    return __init__


def _note(made: Any, frame: FrameType) -> None:
    note_made(made, call_stack(frame, _constructors(type(made))))


def _constructors(cls: type) -> tuple[CodeType, ...]:
    """The `__init__` functions of a class and its bases."""
    found = [vars(c).get("__init__") for c in cls.__mro__]
    plain = [inspect.unwrap(f) for f in found if callable(f)]
    return tuple(f.__code__ for f in plain if hasattr(f, "__code__"))

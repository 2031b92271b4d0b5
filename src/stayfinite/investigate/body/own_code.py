"""The user's code on objects that a replay does not copy: in a replay, copies of that code run.

Optimizers, schedulers and weights belong to the training, but a method of an optimizer's own class, the function in a
LambdaLR, or the `__torch_function__` of a weight's class may count or write elsewhere. For an optimizer or scheduler with such
code the replay uses a stand-in, and the training's own object is left alone. A weight must be the very tensor that the optimizer
moves and the clipping reads, since a gradient arrives at no other one. So for the time of a replay it has another class.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...patches.manager import StandIn, unpatched
from .effects import code_kind, holds_user_code

__all__ = ["STEPPED", "give_copies", "has_own_class", "stand_in", "with_copied_classes"]

STEPPED = (Optimizer, LRScheduler)
_CALLED = (types.FunctionType, types.MethodType, functools.partial)

Copy = Callable[[Any], Any]


def stand_in(stepped: Any) -> Any:
    """What a replay uses for this optimizer or scheduler: itself, or an object of a subclass if it has code of the user's.

    Both have the same `__dict__`: what the training's own code writes, it writes as without a stand-in.
    """
    kind = type(stepped)
    if isinstance(stepped, StandIn) or not _has_own_code(stepped, set()):
        return stepped
    if type(kind) not in (type, abc.ABCMeta) or any("__slots__" in vars(b) for b in kind.__mro__):
        return stepped
    known = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    maker: Any = type(kind)
    made = maker(kind.__name__, (StandIn, kind), known)
    made.stayfinite_original = weakref.ref(stepped)
    new = object.__new__(made)
    object.__setattr__(new, "__dict__", vars(stepped))
    return new


def give_copies(new: Any, copy: Copy) -> None:
    """Give a stand-in copies of the user's functions: its methods, and those in its attributes."""
    made = type(new)
    members: dict[str, Any] = {}
    for base in reversed(made.__mro__):
        members.update(vars(base))
    for name, member in members.items():
        if _is_method(name, member) and (copied := copy(member)) is not member:
            setattr(made, name, copied)
    for name, value in list(vars(new).items()):
        if (copied := _copied(value, copy)) is not value:
            setattr(made, name, _Shown(name, copied))


class _Shown:
    """An attribute that is shown in place of the one in the `__dict__`, until another one is set."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self._value

    def __set__(self, owner: Any, value: Any) -> None:
        delattr(type(owner), self._name)
        vars(owner)[self._name] = value


def _is_method(name: str, member: Any) -> bool:
    return isinstance(member, types.FunctionType) and not name.startswith("__")


def _has_own_code(stepped: Any, seen: set[int]) -> bool:
    if id(stepped) in seen or not hasattr(stepped, "__dict__"):
        return False
    seen.add(id(stepped))
    own = [part for value in vars(stepped).values() for part in _parts(value)]
    members = [m for base in type(stepped).__mro__ for m in vars(base).items()]
    return (
        any(_is_method(n, m) and _is_users(m) for n, m in members)
        or any(isinstance(p, _CALLED) and _is_users(p) for p in own)
        or any(isinstance(p, STEPPED) and _has_own_code(p, seen) for p in own)
    )


def _is_users(function: Any) -> bool:
    original = unpatched(function)
    closure = getattr(original, "__closure__", None) or ()
    is_partial = isinstance(original, functools.partial)
    return is_partial or code_kind(original) == "user" or holds_user_code(closure)


def _parts(value: Any) -> list[Any]:
    """LambdaLR has a list of functions, SequentialLR one of schedulers, an optimizer a dict of its hooks."""
    if type(value) is list:
        return value
    return list(value.values()) if type(value) is OrderedDict else [value]


def _copied(value: Any, copy: Copy) -> Any:
    parts = _parts(value)
    if not any(isinstance(p, (*_CALLED, *STEPPED)) for p in parts):
        return value
    if isinstance(value, types.MethodType) and copy(value.__func__) is value.__func__:
        return value
    new = copy(value)
    return value if all(a is b for a, b in zip(parts, _parts(new))) else new


def has_own_class(parameter: Any) -> bool:
    return isinstance(parameter, Tensor) and type(parameter) not in (Tensor, nn.Parameter)


@contextlib.contextmanager
def with_copied_classes(parameters: Iterable[Tensor], copy: Copy) -> Iterator[None]:
    """In this context, these parameters are of the copies of their classes."""
    kept: list[tuple[Tensor, type]] = []
    try:
        for parameter in parameters:
            kind = type(parameter)
            copied = copy(kind)
            if copied is not kind:
                with contextlib.suppress(TypeError):  # its memory is laid out in another way
                    parameter.__class__ = copied
                    kept.append((parameter, kind))
        yield
    finally:
        for parameter, kind in kept:
            parameter.__class__ = kind

"""The user's code on objects that a replay does not copy: in a replay, copies of that code run.

Optimizers, schedulers and weights belong to the training, but a method of an optimizer's own class, the function in a
LambdaLR, or the `__torch_function__` of a weight's class may count or write elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

__all__ = ["has_own_class", "with_copied_classes", "with_copied_methods"]

Copy = Callable[[Any], Any]
_CALLED = (types.FunctionType, types.MethodType, functools.partial)


@contextlib.contextmanager
def with_copied_methods(stepped: Iterable[Any], copy: Copy) -> Iterator[None]:
    """In this context, calls of the methods of optimizers and schedulers run copies of the user's functions."""
    changes = [(vars(o), _copied_methods(o, copy)) for o in stepped if hasattr(o, "__dict__")]
    before = [{n: own[n] for n in new if n in own} for own, new in changes]
    try:
        for own, new in changes:
            own.update(new)
        yield
    finally:
        for (own, new), kept in zip(changes, before):
            for name in new:
                own.pop(name, None) if name not in kept else own.update({name: kept[name]})


def _copied_methods(stepped: Any, copy: Copy) -> dict[str, Any]:
    """By name: the functions in its own attributes, and the methods of its class, whose copies differ."""
    own = vars(stepped)
    found = {n: new for n, f in own.items() if (new := _copied(f, copy)) is not f}
    members: dict[str, Any] = {}
    for base in reversed(type(stepped).__mro__):
        members.update(vars(base))
    for name, member in members.items():
        is_method = isinstance(member, types.FunctionType) and not name.startswith("__")
        if is_method and name not in own and (new := copy(member)) is not member:
            found[name] = types.MethodType(new, stepped)
    return found


def _copied(value: Any, copy: Copy) -> Any:
    parts = value if type(value) is list else [value]  # LambdaLR has a list of functions
    if not any(isinstance(p, _CALLED) for p in parts):
        return value
    if isinstance(value, types.MethodType) and copy(value.__func__) is value.__func__:
        return value
    return copy(value)


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

"""An attribute of a module, a class or an object: how it is found, replaced and put back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ..errors import UsageError

__all__ = ["Attribute"]

_MISSING: Any = object()


class Attribute:
    """`owner.name` as it was found: its raw object, the function in it, and whether it is own.

    An own attribute is put back by assignment, an inherited one by deleting what hides it.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        inherited = _raw(owner, name)
        own = getattr(owner, "__dict__", {}).get(name, _MISSING)
        self.is_own = own is not _MISSING
        self.raw: Any = own if self.is_own else inherited
        self.function: Callable[..., Any] = _function(self.raw)
        if not callable(self.function):
            raise UsageError(f"{describe(owner)}.{name} cannot be patched: it is not callable")

    def current(self) -> Any:
        """What is there now, without asking descriptors."""
        if self.is_own:
            return getattr(self.owner, "__dict__", {}).get(self.name, _MISSING)
        return self.owner.__dict__.get(self.name, self.raw)

    def wrapped(self, call: Callable[..., Any]) -> Any:
        """`call` in the form in which `raw` was: a static method stays one, and so on."""
        functools.update_wrapper(call, self.function)
        _name_for_pickle(call, self.owner, self.name)
        if isinstance(self.raw, (staticmethod, classmethod)):
            return type(self.raw)(call)
        if isinstance(self.raw, property):
            return self.raw.getter(call)
        if isinstance(self.owner, type) and not hasattr(type(self.raw), "__get__"):
            return staticmethod(call)  # a builtin does not bind, a Python function would
        return call

    def put_back(self) -> None:
        if self.is_own:
            setattr(self.owner, self.name, self.raw)
        else:
            delattr(self.owner, self.name)


def describe(owner: Any) -> str:
    """The name of a module or a class; for an object, of its class."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    name = getattr(owner, "__name__", None)
    return name if isinstance(name, str) else f"an object of {describe(type(owner))}"


def _raw(owner: Any, name: str) -> Any:
    if isinstance(owner, type):
        for cls in owner.__mro__:
            if name in cls.__dict__:
                return cls.__dict__[name]
    try:
        return getattr(owner, name)
    except AttributeError:
        raise UsageError(f"{describe(owner)} has no {name!r} to patch") from None


def _function(raw: Any) -> Any:
    if isinstance(raw, (staticmethod, classmethod)):
        return raw.__func__
    return raw.fget if isinstance(raw, property) else raw


def _name_for_pickle(call: Any, owner: Any, name: str) -> None:
    """A builtin knows itself by a private module (`posix.open`), where the wrapper is not."""
    module, path = getattr(owner, "__name__", None), name
    found = sys.modules.get(str(module))
    if isinstance(owner, type):
        module, path = owner.__module__, f"{owner.__qualname__}.{name}"
        found = sys.modules.get(module)
        for part in owner.__qualname__.split("."):
            found = getattr(found, part, None)
    if found is owner:
        call.__module__, call.__qualname__ = module, path

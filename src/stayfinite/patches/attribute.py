"""Finds, replaces and restores an attribute of a module, class or object."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ..errors import UsageError

__all__ = ["Attribute"]

_MISSING: Any = object()


class Attribute:
    """An attribute as it was found: the raw object, its function, and whether the owner itself defines it.

    An attribute that the owner defines is restored by assignment, an inherited one by deleting the override.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        inherited = _raw(owner, name)
        self._namespace: Any = getattr(owner, "__dict__", {})  # a live view
        own = self._namespace.get(name, _MISSING)
        self.is_own = own is not _MISSING
        self.raw: Any = own if self.is_own else inherited
        self.function: Callable[..., Any] = _function(self.raw)
        self.is_lasting = _find(owner) is owner
        """Whether the owner can be found by its name, so that it lives as long as the process."""
        if not callable(self.function):
            raise UsageError(f"{describe(owner)}.{name} cannot be patched: it is not callable")

    def current(self) -> Any:
        """The current raw attribute, without invoking descriptors."""
        return self._namespace.get(self.name, _MISSING if self.is_own else self.raw)

    def wrapped(self, call: Callable[..., Any]) -> Any:
        """Wrap `call` in the same descriptor as `raw`: a static method stays one, and so on."""
        functools.update_wrapper(call, self.function)
        if self.is_lasting:
            self._name_for_pickle(call)
        if isinstance(self.raw, (staticmethod, classmethod)):
            return type(self.raw)(call)
        if isinstance(self.raw, property):
            return self.raw.getter(call)
        if isinstance(self.owner, type) and not hasattr(type(self.raw), "__get__"):
            return staticmethod(call)  # a builtin does not bind, a Python function would
        return call

    def _name_for_pickle(self, call: Any) -> None:
        """The public name of a builtin, which knows itself by a private module (`posix.open`)."""
        owner = self.owner
        if isinstance(owner, type):
            call.__module__, call.__qualname__ = (
                owner.__module__,
                f"{owner.__qualname__}.{self.name}",
            )
        else:
            call.__module__, call.__qualname__ = owner.__name__, self.name

    def is_as_found(self) -> bool:
        """Whether the attribute is in its original state again."""
        if self.is_own:
            return self.current() is self.raw
        return self.name not in self._namespace and _raw(self.owner, self.name) is self.raw

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
    if isinstance(raw, property):
        return raw.fget
    return _called_by(raw) if isinstance(raw, functools.partialmethod) else raw


def _called_by(method: functools.partialmethod[Any]) -> Callable[..., Any]:
    def call(this: Any, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(this, type(this))(*args, **kwargs)

    return functools.update_wrapper(call, method.func)


def _find(owner: Any) -> Any:
    """The object that the owner's name refers to."""
    if not isinstance(owner, type):
        return sys.modules.get(str(getattr(owner, "__name__", None)))
    found: Any = sys.modules.get(owner.__module__)
    for part in owner.__qualname__.split("."):
        found = getattr(found, part, None)
    return found

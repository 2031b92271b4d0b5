"""Weak references to objects that may not support them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["WeakList", "reference", "weakly"]

T = TypeVar("T")


def reference(thing: T) -> Callable[[], T | None]:
    """A weak reference; a strong one for types that do not support weak references, such as lists.

    >>> class Thing: ...
    >>> thing = Thing()
    >>> ref = reference(thing)
    >>> ref() is thing
    True
    >>> del thing
    >>> ref() is None
    True
    """
    try:
        return weakref.ref(thing)
    except TypeError:  # a class with slots and no room for weak references
        return lambda: thing


def weakly(method: Callable[[], Any]) -> Callable[[], None]:
    """Calls the method for as long as somebody else holds its object."""
    ref = weakref.WeakMethod(method)

    def call() -> None:
        found = ref()
        if found is not None:
            found()

    return call


class WeakList(Generic[T]):
    """A list of weak references: a member that is deleted elsewhere disappears from it.

    >>> class Thing: ...
    >>> thing, things = Thing(), WeakList()
    >>> things.append(thing)
    >>> len(things), thing in things
    (1, True)
    >>> del thing
    >>> len(things)
    0
    """

    def __init__(self, on_gone: Callable[[], None] | None = None) -> None:
        self.refs: list[Callable[[], T | None]] = []
        """The references, for code in every healthy step that must not call `__iter__`."""
        self.version = 0
        """Incremented with every change."""
        self._on_gone = weakly(on_gone) if on_gone is not None else None

    def append(self, member: T) -> None:
        self.version += 1
        try:
            self.refs.append(weakref.ref(member, self._gone))
        except TypeError:  # a class with slots and no room for weak references
            self.refs.append(lambda: member)

    def _gone(self, ref: Any) -> None:
        self.refs = [r for r in self.refs if r is not ref]
        self.version += 1
        if self._on_gone is not None:
            self._on_gone()

    def remove(self, member: T) -> None:
        self.refs = [ref for ref in self.refs if ref() is not member]
        self.version += 1

    def clear(self) -> None:
        self.refs.clear()
        self.version += 1

    def __iter__(self) -> Iterator[T]:
        return iter([member for ref in self.refs if (member := ref()) is not None])

    def __len__(self) -> int:
        return len(self.refs)  # `_gone` removes deleted members

    def __contains__(self, wanted: object) -> bool:
        for ref in self.refs:  # noqa: SIM110 - in every healthy step
            if ref() is wanted:
                return True
        return False

    def __getitem__(self, index: int) -> T:
        return list(self)[index]

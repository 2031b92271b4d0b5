"""The manager of all patches of torch, Python and the frameworks.

A patch replaces a function once, for any number of subscribers. They can come and go in any order and from any thread. When
the last one leaves, the original object is restored. If other code has patched on top of ours, its patch stays, and ours
only calls the original until theirs is gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, cast, overload

from ..putting_back import put_back
from .attribute import Attribute, describe
from .firewall import Firewall
from .scripted import stand_in, stand_out
from .warning_frames import skipped_by_warnings

__all__ = [
    "MakeWrapper",
    "Row",
    "StandIn",
    "Subscribers",
    "Subscription",
    "Target",
    "close_all",
    "original_of",
    "patched",
    "subscribe",
    "table",
    "unpatched",
]


@dataclass(frozen=True)
class Target:
    """What to patch, the reason, and the name of the part that the user can turn off."""

    owner: Any
    name: str
    reason: str
    switch: str
    members: tuple[set[Any], ...] = field(default=(), repr=False, compare=False)
    """Sets that contain the original (`os.supports_follow_symlinks`); the patch is added to them."""


@dataclass(frozen=True)
class Row:
    """A patch in `table`."""

    owner: str
    name: str
    reason: str
    switch: str
    state: str
    """"active", or "under another patch" if other code has replaced the attribute after us."""


class Subscribers(Sequence[Any]):
    """The current subscribers of a patch, the most recent last; iterating uses a snapshot."""

    def __init__(self) -> None:
        self.now: tuple[Any, ...] = ()

    def here(self) -> list[Any]:
        """The subscribers whose listener belongs to this thread."""
        me = threading.get_ident()
        return [s for s in self.now if s.listener.thread_id == me]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.now[index]


MakeWrapper = Callable[[Callable[..., Any], Subscribers], Callable[..., Any]]


class Subscription:
    """One subscription; `close` ends it, and can be called repeatedly."""

    def __init__(self, target: Target, subscriber: Any, patch: _Patch, layer: _Layer) -> None:
        self.target = target
        self.subscriber = subscriber
        self._patch = patch
        self._layer = layer

    @property
    def is_open(self) -> bool:
        return self in self._layer.subscriptions

    def close(self) -> None:
        """Run a cleanup; if it fails twice, this patch stays."""
        _closing.once(put_back, lambda: _manager.close(self))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Layer:
    """The wrapper of one `make_wrapper`, shared by its subscribers."""

    def __init__(
        self, make_wrapper: MakeWrapper, below: Callable[..., Any], is_lowest: bool
    ) -> None:
        self.make_wrapper = make_wrapper
        self.below = below
        self.subscribers = Subscribers()
        self.subscriptions: tuple[Subscription, ...] = ()
        # The function below the lowest layer never changes, so it is called directly.
        self.call = skipped_by_warnings(
            make_wrapper(below if is_lowest else self._call_below, self.subscribers)
        )
        with contextlib.suppress(AttributeError, TypeError):
            # A wrong call is answered with the name of the function that was called.
            self.call.__qualname__ = getattr(below, "__qualname__", self.call.__qualname__)

    @skipped_by_warnings
    def _call_below(self, *args: Any, **kwargs: Any) -> Any:
        return self.below(*args, **kwargs)

    def add(self, subscription: Subscription) -> None:
        self.subscriptions += (subscription,)
        self.subscribers.now += (subscription.subscriber,)

    def remove(self, subscription: Subscription) -> None:
        self.subscriptions = tuple([s for s in self.subscriptions if s is not subscription])
        self.subscribers.now = tuple([s.subscriber for s in self.subscriptions])


class _Patch:
    """One replaced attribute. Different wrappers are layers, called from the last to the first."""

    def __init__(self, target: Target) -> None:
        self.attribute = Attribute(target.owner, target.name)
        self.layers: tuple[_Layer, ...] = ()
        self._spare: _Layer | None = None
        self.top = self.attribute.function
        self.installed = self.attribute.wrapped(_dispatcher(self))
        self._members = [m for m in target.members if self.attribute.raw in m]

    def install(self) -> None:
        for members in self._members:
            members.add(self.installed)
        stand_in(self.installed, self.attribute.raw)
        setattr(self.attribute.owner, self.attribute.name, self.installed)

    def remove(self) -> None:
        """Restore the original, unless other code has replaced the patch or restored the original."""
        if self.is_on_top():
            self.attribute.put_back()
        for members in self._members:
            members.discard(self.installed)
        stand_out(self.installed)

    def is_on_top(self) -> bool:
        return self.attribute.current() is self.installed

    def layer(self, make_wrapper: MakeWrapper) -> _Layer:
        for layer in self.layers:
            if layer.make_wrapper == make_wrapper:
                return layer
        spare = self._spare
        if not self.layers and spare is not None and spare.make_wrapper == make_wrapper:
            layer = spare
        else:
            layer = _Layer(make_wrapper, self.top, is_lowest=not self.layers)
            if not self.layers:
                self._spare = layer
        self.layers += (layer,)
        self.top = layer.call
        return layer

    def drop(self, layer: _Layer) -> None:
        """Deactivate the layer after its last subscriber has left."""
        self.layers = tuple(x for x in self.layers if x is not layer)
        below = self.attribute.function
        for one in self.layers:
            one.below = below
            below = one.call
        self.top = below

    def row(self) -> Row:
        targets = [s.target for layer in self.layers for s in layer.subscriptions]
        return Row(
            owner=describe(self.attribute.owner),
            name=self.attribute.name,
            reason="; ".join(dict.fromkeys(t.reason for t in targets)),
            switch=", ".join(dict.fromkeys(t.switch for t in targets)),
            state="active" if self.is_on_top() else "under another patch",
        )


def _dispatcher(patch: _Patch | None) -> FunctionType:
    """The function that replaces the original."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return patch.top(*args, **kwargs)  # type: ignore[union-attr]

    return cast("FunctionType", skipped_by_warnings(call))


_DISPATCH = _dispatcher(None).__code__


class _Manager:
    """The table of all patches. Every change is made under one lock, which also blocks forks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_changing = False
        self._to_close: list[Subscription] = []
        self._patches: dict[tuple[int, str], list[_Patch]] = {}
        self._kept: dict[tuple[int, str], _Patch] = {}
        """Removed patches of owners that live as long as the process, kept for reuse."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._lock.acquire,
                after_in_parent=self._lock.release,
                after_in_child=self._lock.release,
            )

    def subscribe(self, target: Target, make_wrapper: MakeWrapper, subscriber: Any) -> Subscription:
        with self._lock:
            was_changing, self._is_changing = self._is_changing, True
            try:
                patch = self._patch(target)
                layer = patch.layer(make_wrapper)
                made = Subscription(target, subscriber, patch, layer)
                layer.add(made)
            except BaseException:
                self._drop_empty((id(target.owner), target.name))
                raise
            finally:
                self._is_changing = was_changing
            if self._to_close:
                self._close_waiting()
        return made

    def _drop_empty(self, key: tuple[int, str]) -> None:
        """Undo a subscription that failed half-way."""
        for patch in self._patches.get(key, []):
            for layer in patch.layers:
                if not layer.subscriptions:
                    patch.drop(layer)
        self._settle(key)

    def close(self, subscription: Subscription) -> None:
        with self._lock:
            # A finalizer may run in this thread during a change.
            self._to_close.append(subscription)
            self._close_waiting()

    def table(self) -> list[Row]:
        with self._lock:
            for key in list(self._patches):
                self._settle(key)
            # A guard may be collected meanwhile, which changes the table.
            return [p.row() for patches in list(self._patches.values()) for p in list(patches)]

    def _close_waiting(self) -> None:
        while self._to_close and not self._is_changing:
            self._is_changing = True
            try:
                self._close(self._to_close.pop())
            finally:
                self._is_changing = False

    def _close(self, subscription: Subscription) -> None:
        layer, patch = subscription._layer, subscription._patch
        if subscription in layer.subscriptions:
            layer.remove(subscription)
        if not layer.subscriptions and layer in patch.layers:
            patch.drop(layer)
        if not patch.layers:
            self._settle((id(patch.attribute.owner), patch.attribute.name))

    def _patch(self, target: Target) -> _Patch:
        """The patch to join: the top one, or a new one above the patch of other code."""
        key = (id(target.owner), target.name)
        patches = self._patches.get(key)
        if patches is None:
            return self._install(key, target, [])
        self._settle(key)
        if patches and patches[-1].is_on_top():
            return patches[-1]
        for patch in patches:
            if patch.attribute.current() is patch.attribute.raw:
                patch.install()  # other code has restored the original
                return patch
        return self._install(key, target, patches)

    def _install(self, key: tuple[int, str], target: Target, patches: list[_Patch]) -> _Patch:
        made = self._kept.pop(key, None)
        if made is None or not made.attribute.is_as_found():
            made = _Patch(target)
        made.install()
        patches.append(made)
        self._patches[key] = patches
        return made

    def _settle(self, key: tuple[int, str]) -> None:
        """Restore attributes without subscribers, if other code has not patched them."""
        patches = self._patches.get(key, [])
        for patch in reversed(list(patches)):
            if patch.layers:
                continue
            if not patch.is_on_top() and patch.attribute.current() is not patch.attribute.raw:
                continue  # below another patch, which may call ours: stays, without layers
            patch.remove()
            patches.remove(patch)
            if patch.attribute.is_lasting:
                self._kept[key] = patch
        if not patches:
            self._patches.pop(key, None)


def close_all(subscriptions: list[Any]) -> None:
    """Close every subscription, even if some fail; the list is empty afterwards."""
    put_back(*(s.close for s in subscriptions), subscriptions.clear)


_manager = _Manager()
_closing = Firewall("taking a patch out")


def subscribe(target: Target, make_wrapper: MakeWrapper, subscriber: Any) -> Subscription:
    """Subscribe to the patch of `target`: the first subscriber installs it, the last one removes it.

    `make_wrapper(original, subscribers)` returns the replacement. It is called for the first subscriber that brings it, and the
    result is reused later, so it must not refer to anything but the original. Without subscribers the replacement is not called.

    >>> import math
    >>> def doubled(original, subscribers):
    ...     return lambda x: 2 ** len(subscribers) * original(x)
    >>> with subscribe(Target(math, "sqrt", "an example", "examples"), doubled, "me"):
    ...     math.sqrt(9)
    6.0
    >>> math.sqrt(9)
    3.0
    """
    return _manager.subscribe(target, make_wrapper, subscriber)


def unpatched(function: Any) -> Any:
    """The original, if `function` is one of our patches; else `function` itself."""
    if type(function) is FunctionType and function.__code__ is _DISPATCH:
        return function.__wrapped__  # type: ignore[attr-defined]
    return function


def patched(function: Any, original: Any) -> Any:
    """The patch of `function`, around another original."""
    patch: _Patch = function.__closure__[0].cell_contents
    for layer in patch.layers:
        original = layer.make_wrapper(original, layer.subscribers)
    return original


class StandIn:
    """Stands for an object of the training in a replay; a patch that meets it asks for its original.

    It is the first base of such a class, so that to make one runs no `__init_subclass__` of the user's.
    """

    __slots__ = ()
    stayfinite_original: weakref.ref[Any]

    def __init_subclass__(cls) -> None: ...


def original_of(value: Any) -> Any:
    """The object of the training that this one stands for, or is."""
    return value.stayfinite_original() if isinstance(value, StandIn) else value


def table() -> list[Row]:
    """All current patches."""
    return _manager.table()

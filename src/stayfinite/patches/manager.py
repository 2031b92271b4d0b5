"""The one place where functions of torch, Python or a framework are replaced and restored.

A patch is one function in the place of the original, whatever the number of subscribers. They come
and go in any order, from any thread; when the last one has left, the very original object is back. If
somebody else has patched on top of ours meanwhile, theirs stays, and ours calls the original and
nothing else until theirs is gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, cast, overload

from ..putting_back import put_back
from .attribute import Attribute, describe
from .firewall import Firewall

__all__ = [
    "MakeWrapper",
    "Row",
    "Subscribers",
    "Subscription",
    "Target",
    "close_all",
    "subscribe",
    "table",
    "unpatched",
]


@dataclass(frozen=True)
class Target:
    """What is patched, why, and by which name a user turns the part off that needs it."""

    owner: Any
    name: str
    reason: str
    switch: str
    members: tuple[set[Any], ...] = field(default=(), repr=False, compare=False)
    """Sets by which others know the original (`os.supports_follow_symlinks`); the patch is in them too."""


@dataclass(frozen=True)
class Row:
    """A patch as `table` lists it."""

    owner: str
    name: str
    reason: str
    switch: str
    num_subscribers: int
    state: str
    """"active", or "under another patch": somebody has replaced the attribute after us."""


class Subscribers(Sequence[Any]):
    """Who takes part in a patch just now, the most recent last; a loop over it sees one moment."""

    def __init__(self) -> None:
        self.now: tuple[Any, ...] = ()

    def here(self) -> list[Any]:
        """Those whose listener's thread this is."""
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
    """One subscriber's part in a patch; `close` ends it, as often as it is called."""

    def __init__(self, target: Target, subscriber: Any, patch: _Patch, layer: _Layer) -> None:
        self.target = target
        self.subscriber = subscriber
        self._patch = patch
        self._layer = layer

    @property
    def is_open(self) -> bool:
        return self in self._layer.subscriptions

    def close(self) -> None:
        """What fails twice here leaves this patch where it is."""
        _closing.once(put_back, lambda: _manager.close(self))

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Layer:
    """The wrapper of one `make_wrapper`, shared by all subscribers who came with the same one."""

    def __init__(
        self, make_wrapper: MakeWrapper, below: Callable[..., Any], is_lowest: bool
    ) -> None:
        self.make_wrapper = make_wrapper
        self.below = below
        self.subscribers = Subscribers()
        self.subscriptions: tuple[Subscription, ...] = ()
        # What lies below the lowest layer never changes, so it needs no detour.
        self.call = make_wrapper(below if is_lowest else self._call_below, self.subscribers)

    def _call_below(self, *args: Any, **kwargs: Any) -> Any:
        return self.below(*args, **kwargs)

    def add(self, subscription: Subscription) -> None:
        self.subscriptions += (subscription,)
        self.subscribers.now += (subscription.subscriber,)

    def remove(self, subscription: Subscription) -> None:
        self.subscriptions = tuple([s for s in self.subscriptions if s is not subscription])
        self.subscribers.now = tuple([s.subscriber for s in self.subscriptions])


class _Patch:
    """One replaced attribute. Different wrappers for it are layers, called from the last to the first."""

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
        setattr(self.attribute.owner, self.attribute.name, self.installed)

    def remove(self) -> None:
        """The original is back, unless somebody else's patch or the original itself is there."""
        if self.is_on_top():
            self.attribute.put_back()
        for members in self._members:
            members.discard(self.installed)

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
        """Without its last subscriber a layer is not called any more."""
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
            num_subscribers=len(targets),
            state="active" if self.is_on_top() else "under another patch",
        )


def _dispatcher(patch: _Patch | None) -> FunctionType:
    """The function that takes the original's place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return patch.top(*args, **kwargs)  # type: ignore[union-attr]

    return cast("FunctionType", call)


_DISPATCH = _dispatcher(None).__code__


class _Manager:
    """All patches; every change is made under one lock, which a fork waits for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_changing = False
        self._to_close: list[Subscription] = []
        self._patches: dict[tuple[int, str], list[_Patch]] = {}
        self._kept: dict[tuple[int, str], _Patch] = {}
        """Removed patches of owners that live as long as the process, to be installed again."""
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
        """What a subscription that failed has left half-made."""
        for patch in self._patches.get(key, []):
            for layer in patch.layers:
                if not layer.subscriptions:
                    patch.drop(layer)
        self._settle(key)

    def close(self, subscription: Subscription) -> None:
        with self._lock:
            # A finalizer may run in the middle of a change that this very thread is making.
            self._to_close.append(subscription)
            self._close_waiting()

    def table(self) -> list[Row]:
        with self._lock:
            for key in list(self._patches):
                self._settle(key)
            # A guard that is collected meanwhile takes its patches out of the table.
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
        """The patch to join: the one on top, or a new one on top of whoever has come after us."""
        key = (id(target.owner), target.name)
        patches = self._patches.get(key)
        if patches is None:
            return self._install(key, target, [])
        self._settle(key)
        if patches and patches[-1].is_on_top():
            return patches[-1]
        for patch in patches:
            if patch.attribute.current() is patch.attribute.raw:
                patch.install()  # somebody has put back what was there before us
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
        """Put back what nobody subscribes to any more, as far as it is ours to put back."""
        patches = self._patches.get(key, [])
        for patch in reversed(list(patches)):
            if patch.layers:
                continue
            if not patch.is_on_top() and patch.attribute.current() is not patch.attribute.raw:
                continue  # under somebody else's patch, which may call ours: it stays, empty
            patch.remove()
            patches.remove(patch)
            if patch.attribute.is_lasting:
                self._kept[key] = patch
        if not patches:
            self._patches.pop(key, None)


def close_all(subscriptions: list[Any]) -> None:
    """Close each, though one of them fails; the list is empty then."""
    put_back(*(s.close for s in subscriptions), subscriptions.clear)


_manager = _Manager()
_closing = Firewall("taking a patch out")


def subscribe(target: Target, make_wrapper: MakeWrapper, subscriber: Any) -> Subscription:
    """Take part in the patch of `target`; the first subscriber installs it, the last one ends it.

    `make_wrapper(original, subscribers)` returns what is called instead. It is called when the first
    subscriber comes that brings it; what it made is kept for the next time, so it must hold nothing but
    the original. While there are no subscribers, what it made is not called.

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
    """What was there before us, if `function` is one of our patches; else `function` itself."""
    if type(function) is FunctionType and function.__code__ is _DISPATCH:
        return function.__wrapped__  # type: ignore[attr-defined]
    return function


def table() -> list[Row]:
    """All patches there are just now."""
    return _manager.table()

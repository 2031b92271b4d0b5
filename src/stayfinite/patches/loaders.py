"""Which batch a loop has been given, noted where torch's own iterator hands it out.

`iter(loader)` stays the loader's own iterator: only `__next__` of its class is wrapped. A loader that
looks ahead and iterates another one (accelerate's) is noted where the loop meets it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data.dataloader import _BaseDataLoaderIter

from .firewall import Firewall
from .manager import Subscribers, Subscription, Target, close_all, subscribe
from .provenance import provenance

__all__ = ["LoaderListener", "LoaderPatches"]

_ident = threading.get_ident


class _Inside(threading.local):
    """How many loaders this thread is inside of, one in the other."""

    count = 0


_inside = _Inside()
_REASON = "the batch of a step is noted where the loader hands it out"
_AROUND = (
    ("accelerate.data_loader", "DataLoaderShard"),
    ("accelerate.data_loader", "DataLoaderDispatcher"),
)


class LoaderListener(Protocol):
    """Who hears of batches."""

    @property
    def thread_id(self) -> int: ...

    @property
    def firewall(self) -> Firewall: ...

    def before_batch(self, loader: Any) -> None:
        """The loop asks for the next batch: what it did with the last one is over."""

    @property
    def draw(self) -> Callable[[Any, Callable[[], Any]], Any] | None:
        """Gives the loop its batch, for this loader, where it is not simply the loader's own."""

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        """The loop is about to get this batch; False for one that it shall not get."""

    def on_loader_start(self, loader: Any) -> None: ...

    def on_loader_end(self, loader: Any) -> None: ...


class LoaderPatches:
    """A listener's part in them; `close` ends it."""

    def __init__(self, listener: LoaderListener) -> None:
        self.listener = listener
        target = Target(_BaseDataLoaderIter, "__next__", _REASON, "loaders")
        self._subscriptions: list[Subscription] = [subscribe(target, _next, self)]
        self._around: set[type] = set()

    def look_for_others(self) -> None:
        """Loaders round loaders, once their package has been imported."""
        for module, name in _AROUND:
            cls = getattr(sys.modules.get(module), name, None)
            if isinstance(cls, type) and cls not in self._around:
                self._around.add(cls)
                target = Target(cls, "__iter__", _REASON, "loaders")
                self._subscriptions.append(subscribe(target, _iter_around, self))

    def close(self) -> None:
        close_all(self._subscriptions)


def _next(original: Any, subscribers: Subscribers) -> Any:
    def __next__(iterator: Any) -> Any:
        listener = None
        if not _inside.count:
            me = _ident()
            for each in subscribers.now:
                if each.listener.thread_id == me:
                    listener = each.listener
        if listener is None:
            return original(iterator)
        loader = listener.firewall.call(provenance.loader_of, iterator)
        return _noted(listener, iterator if loader is None else loader, original, iterator)

    return __next__


def _noted(listener: LoaderListener, loader: Any, draw: Any, iterator: Any) -> Any:
    call = listener.firewall.call
    call(listener.before_batch, loader)
    if getattr(iterator, "_num_yielded", 1) == 0:
        call(listener.on_loader_start, loader)
    while True:
        _inside.count += 1
        try:
            own = listener.draw
            batch = draw(iterator) if own is None else own(loader, lambda: draw(iterator))
        except StopIteration:
            _inside.count -= 1
            call(listener.on_loader_end, loader)
            _inside.count += 1
            raise
        finally:
            _inside.count -= 1
        if call(listener.takes_batch, loader, batch, provenance.batch_indices, fallback=True):
            return batch


def _iter_around(original: Any, subscribers: Subscribers) -> Any:
    def __iter__(loader: Any) -> Iterator[Any]:
        inner = original(loader)
        while True:
            mine = [s.listener for s in subscribers.now if s.listener.thread_id == _ident()]
            listener = mine[-1] if mine and not _inside.count else None
            try:
                if listener is None:
                    batch = next(inner)
                else:
                    batch = _noted(listener, loader, next, inner)
            except StopIteration:
                return
            yield batch

    return __iter__

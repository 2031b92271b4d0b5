"""Which batch a loop has been given and of which samples, noted where torch's own iterator hands it out.

`iter(loader)` stays the loader's own iterator: only functions of its class are wrapped. A loader that
looks ahead and iterates another one (accelerate's) is noted where the loop meets it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from ..errors import StayfiniteError
from .firewall import Firewall
from .listeners import Ordinary
from .manager import Subscribers, Subscription, Target, close_all, subscribe

__all__ = ["Indices", "LoaderListener", "LoaderPatches", "note_samples", "samples"]

_ident = threading.get_ident


_reading: set[int] = set()
"""Threads that are inside of a loader that is noted: those which it reads itself are not."""
_REASON = "the batch of a step is noted where the loader hands it out"
_SAMPLES = "the samples of a batch are noted, so that a bad one can be named"
_AROUND = (
    ("accelerate.data_loader", "DataLoaderShard"),
    ("accelerate.data_loader", "DataLoaderDispatcher"),
)


class Indices(list[Any]):
    """The samples of a batch, and which of the loader's processes has read them."""

    def __init__(self, indices: list[Any], worker: int) -> None:
        super().__init__(indices)
        self.worker = worker


class _Iteration:
    """One iterator of a DataLoader: its loader, and the samples that its next batches are made of."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = weakref.ref(loader)
        self.waiting: deque[Any] = deque(maxlen=1024)
        self.worker: int | None = None
        """The process that has read the last batch, where it was not this one."""


def _nobody() -> None:
    """There is no iterator yet."""


class Samples:
    """What is known of the iterators of DataLoaders; one per process."""

    def __init__(self) -> None:
        self.of_batch: list[Any] | None = None
        """The data set's indices of the batch that a DataLoader made last."""
        self.iterations: weakref.WeakKeyDictionary[Any, _Iteration] = weakref.WeakKeyDictionary()
        self.last: tuple[Callable[[], Any], _Iteration | None] = (_nobody, None)
        """The iterator that was asked for last, and what is known of it."""

    @property
    def iterator(self) -> Any:
        """The DataLoader's iterator that made a batch last, while it lives."""
        return self.last[0]()

    def begin(self, iterator: Any, loader: DataLoader[Any]) -> None:
        """This loader has begun to be iterated over."""
        self.iterations[iterator] = _Iteration(loader)

    def known(self, iterator: Any) -> _Iteration | None:
        """What is known of this one, and asked for again soon."""
        last = self.last
        if last[0]() is iterator:
            return last[1]
        known = self.iterations.get(iterator)
        self.last = (weakref.ref(iterator), known)
        return known


samples = Samples()
_notes = Firewall("the notes of which samples a batch is made of")


class LoaderListener(Protocol):
    """Who hears of batches."""

    @property
    def thread_id(self) -> int: ...

    @property
    def firewall(self) -> Firewall: ...

    @property
    def ordinary(self) -> Ordinary | None:
        """Who takes what is in nearly every healthy step, in one call each; None: nobody."""

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


class _NotesOnly:
    """A part in the patches of somebody who only wants to know the samples."""

    listener = None


def note_samples() -> list[Subscription]:
    """From now on `samples` knows; until the subscriptions are closed."""
    wanted = [
        (_BaseDataLoaderIter, "__init__", _init),
        (_BaseDataLoaderIter, "_next_index", _next_index),
        (_BaseDataLoaderIter, "__next__", _next),
        (_MultiProcessingDataLoaderIter, "_process_data", _process_data),
    ]
    return [
        subscribe(Target(owner, name, _SAMPLES, "provenance"), make, _NotesOnly())
        for owner, name, make in wanted
    ]


def _init(original: Any, subscribers: Subscribers) -> Any:
    def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        _notes.once(samples.begin, iterator, loader)
        original(iterator, loader, *args, **kwargs)

    return __init__


def _next_index(original: Any, subscribers: Subscribers) -> Any:
    def _next_index(iterator: Any) -> Any:
        index = original(iterator)
        last = samples.last
        is_last = last[0]() is iterator
        known = last[1] if is_last else _notes.once(samples.known, iterator)
        if known is not None:
            if getattr(iterator, "_send_idx", 1) == 0:
                known.waiting.clear()  # workers that stay begin another epoch
            known.waiting.append(index)
        return index

    return _next_index


def _process_data(original: Any, subscribers: Subscribers) -> Any:
    def _process_data(iterator: Any, data: Any, *worker: Any) -> Any:
        known = _notes.once(samples.known, iterator)
        if worker and known is not None:  # before torch 2.6 it is not told
            known.worker = worker[0]
        return original(iterator, data, *worker)

    return _process_data


def _next(original: Any, subscribers: Subscribers) -> Any:
    def __next__(iterator: Any) -> Any:
        listener, last = None, samples.last
        # In nearly every healthy step it is the iterator that it was in the one before.
        known = (
            last[1]
            if last[0]() is iterator
            else _notes.once(samples.known, iterator) or samples.iterations.get(iterator)
        )
        me = _ident()
        if me not in _reading:
            for each in subscribers.now:
                if each.listener is not None and each.listener.thread_id == me:
                    listener = each.listener
        if listener is None:
            return _read(iterator, known, original)
        loader = known.loader() if known is not None else None
        given = iterator if loader is None else loader
        return _noted(listener, given, iterator, _read, known, original)

    return __next__


def _read(iterator: Any, known: _Iteration | None, original: Any) -> Any:
    """The next batch, and of which samples it is."""
    waiting = known.waiting if known is not None else None
    try:
        batch = original(iterator)
    except StopIteration:
        raise
    except BaseException:
        if waiting:
            waiting.popleft()  # these could not be read
        raise
    index = waiting.popleft() if waiting else None
    if index is not None:
        if not isinstance(index, list) or not getattr(iterator, "_in_order", True):
            index = None
        elif known is not None and known.worker is not None:
            index = Indices(index, known.worker)
    samples.of_batch = index
    return batch


def _noted(
    listener: LoaderListener, loader: Any, iterator: Any, read: Callable[..., Any], *given: Any
) -> Any:
    """The next batch, by `read(iterator, *given)`."""
    firewall, ordinary, me = listener.firewall, listener.ordinary, listener.thread_id
    try:  # not by way of `firewall.call`: this is in every healthy step
        if not firewall.is_down:
            if ordinary is None or not ordinary.is_over_by(loader):
                listener.before_batch(loader)
            if getattr(iterator, "_num_yielded", 1) == 0:
                listener.on_loader_start(loader)
    except StayfiniteError:
        raise
    except Exception as error:
        firewall.fail(error)
    while True:
        _reading.add(me)
        try:
            own = listener.draw
            if own is None:
                batch = read(iterator, *given)
            else:
                batch = own(loader, partial(read, iterator, *given))
        except StopIteration:
            _reading.discard(me)
            firewall.call(listener.on_loader_end, loader)
            raise
        finally:
            _reading.discard(me)
        try:
            if firewall.is_down:
                return batch
            indices = samples.of_batch
            if ordinary is not None and ordinary.takes_batch(loader, batch, indices):
                return batch
            if listener.takes_batch(loader, batch, indices):
                return batch
        except StayfiniteError:
            raise
        except Exception as error:
            firewall.fail(error)
            return batch


def _iter_around(original: Any, subscribers: Subscribers) -> Any:
    def __iter__(loader: Any) -> Iterator[Any]:
        inner = original(loader)
        while True:
            mine = [s.listener for s in subscribers.now if s.listener.thread_id == _ident()]
            listener = mine[-1] if mine and _ident() not in _reading else None
            try:
                if listener is None:
                    batch = next(inner)
                else:
                    batch = _noted(listener, loader, inner, next)
            except StopIteration:
                return
            yield batch

    return __iter__

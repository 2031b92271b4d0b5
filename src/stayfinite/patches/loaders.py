"""Observes batches and their samples in torch's own DataLoader iterators.

`iter(loader)` still returns the loader's own iterator; only methods of its class are wrapped. For a loader that prefetches
from another one (accelerate's), the outer one is observed.
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
from .warning_frames import skipped_by_warnings

__all__ = ["Indices", "LoaderListener", "LoaderPatches", "note_samples", "samples"]

_ident = threading.get_ident


_reading: set[int] = set()
"""The threads that are inside a loader; loaders that it reads itself are not recorded."""
_REASON = "the batch of a step is noted where the loader hands it out"
_SAMPLES = "the samples of a batch are noted, so that a bad one can be named"
_AROUND = (
    ("accelerate.data_loader", "DataLoaderShard"),
    ("accelerate.data_loader", "DataLoaderDispatcher"),
)


class Indices(list[Any]):
    """The samples of a batch, and the worker that read them."""

    def __init__(self, indices: list[Any], worker: int) -> None:
        super().__init__(indices)
        self.worker = worker


class _Iteration:
    """One iterator of a DataLoader: its loader, and the samples of its next batches."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = weakref.ref(loader)
        self.waiting: deque[Any] = deque(maxlen=1024)
        self.worker: int | None = None
        """The worker of the last batch; None if the main process read it."""


def _nobody() -> None:
    """An empty state, without an iterator."""


class Samples:
    """The known DataLoader iterators of this process."""

    def __init__(self) -> None:
        self.of_batch: list[Any] | None = None
        """The data set indices of the last batch."""
        self.iterations: weakref.WeakKeyDictionary[Any, _Iteration] = weakref.WeakKeyDictionary()
        self.last: tuple[Callable[[], Any], _Iteration | None] = (_nobody, None)
        """The last iterator, and its state."""

    @property
    def iterator(self) -> Any:
        """The DataLoader iterator of the last batch, while it lives."""
        return self.last[0]()

    def begin(self, iterator: Any, loader: DataLoader[Any]) -> None:
        """Note that this loader starts an iteration."""
        self.iterations[iterator] = _Iteration(loader)

    def known(self, iterator: Any) -> _Iteration | None:
        """The state of an iterator, which is also cached for the next call."""
        last = self.last
        if last[0]() is iterator:
            return last[1]
        known = self.iterations.get(iterator)
        self.last = (weakref.ref(iterator), known)
        return known


samples = Samples()
_notes = Firewall("the notes of which samples a batch is made of")


class LoaderListener(Protocol):
    """Receives batches."""

    @property
    def thread_id(self) -> int: ...

    @property
    def firewall(self) -> Firewall: ...

    @property
    def ordinary(self) -> Ordinary | None:
        """The fast methods, for nearly every healthy step; None if there are none."""

    def before_batch(self, loader: Any) -> None:
        """The loop requests the next batch, so its work on the last one is finished."""

    @property
    def draw(self) -> Callable[[Any, Callable[[], Any]], Any] | None:
        """Draws the batch, if the loop should not simply get the loader's next one."""

    def takes_batch(self, loader: Any, batch: Any, indices: Any) -> bool:
        """The loop is about to get this batch; return False to withhold it."""

    def on_loader_start(self, loader: Any) -> None: ...

    def on_loader_end(self, loader: Any) -> None: ...


class LoaderPatches:
    """The patches of one listener; `close` removes them."""

    def __init__(self, listener: LoaderListener) -> None:
        self.listener = listener
        target = Target(_BaseDataLoaderIter, "__next__", _REASON, "loaders")
        self._subscriptions: list[Subscription] = [subscribe(target, _next, self)]
        self._around: set[type] = set()

    def find_others(self) -> None:
        """Patch wrappers of loaders, once their package is imported."""
        for module, name in _AROUND:
            cls = getattr(sys.modules.get(module), name, None)
            if isinstance(cls, type) and cls not in self._around:
                self._around.add(cls)
                target = Target(cls, "__iter__", _REASON, "loaders")
                self._subscriptions.append(subscribe(target, _iter_around, self))

    def close(self) -> None:
        close_all(self._subscriptions)


class _NotesOnly:
    """A subscription that only records the samples."""

    listener = None


def note_samples() -> list[Subscription]:
    """Record samples until the subscriptions are closed."""
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
                known.waiting.clear()  # persistent workers start another epoch
            known.waiting.append(index)
        return index

    return _next_index


def _process_data(original: Any, subscribers: Subscribers) -> Any:
    def _process_data(iterator: Any, data: Any, *worker: Any) -> Any:
        known = _notes.once(samples.known, iterator)
        if worker and known is not None:  # torch before 2.6 does not pass it
            known.worker = worker[0]
        return original(iterator, data, *worker)

    return _process_data


def _next(original: Any, subscribers: Subscribers) -> Any:
    def __next__(iterator: Any) -> Any:
        listener, last = None, samples.last
        # In nearly every healthy step it is the same iterator as before.
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


@skipped_by_warnings
def _read(iterator: Any, known: _Iteration | None, original: Any) -> Any:
    """The next batch, with its samples recorded."""
    waiting = known.waiting if known is not None else None
    try:
        batch = original(iterator)
    except StopIteration:
        raise
    except BaseException:
        if waiting:
            waiting.popleft()  # the samples could not be read
        raise
    index = waiting.popleft() if waiting else None
    if index is not None:
        if not isinstance(index, list) or not getattr(iterator, "_in_order", True):
            index = None
        elif known is not None and known.worker is not None:
            index = Indices(index, known.worker)
    samples.of_batch = index
    return batch


@skipped_by_warnings
def _noted(
    listener: LoaderListener, loader: Any, iterator: Any, read: Callable[..., Any], *given: Any
) -> Any:
    """The next batch, by `read(iterator, *given)`."""
    firewall, ordinary, me = listener.firewall, listener.ordinary, listener.thread_id
    try:  # Not through `firewall.call`: this runs in every healthy step.
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

"""Keeps user code that runs asynchronously out of a replay.

A signal handler can run in the main thread at any time, and must take effect: it may save a checkpoint before the job is
preempted. A finalizer runs when the garbage collector finds an old cycle, and its effects are intended too.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .box import outside

__all__ = ["interruptions_outside"]

_lock = threading.Lock()
_num_frozen = 0


@contextlib.contextmanager
def interruptions_outside() -> Iterator[None]:
    """Run signal handlers as if there were no replay, and delay the collection of older garbage."""
    with _handlers_outside(), _older_garbage_waits():
        yield


@contextlib.contextmanager
def _handlers_outside() -> Iterator[None]:
    replaced: dict[int, tuple[Any, Any]] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                replaced[number] = (handler, _outside(handler))
    try:
        for one, (_, wrapper) in replaced.items():
            signal.signal(one, wrapper)
        yield
    finally:
        for one, (handler, wrapper) in replaced.items():
            if signal.getsignal(one) is wrapper:
                signal.signal(one, handler)


def _outside(handler: Callable[..., Any]) -> Callable[..., Any]:
    def call(number: int, frame: Any) -> Any:
        return outside(handler, number, frame)

    return call


@contextlib.contextmanager
def _older_garbage_waits() -> Iterator[None]:
    """Collect only objects of the replay; if the user has frozen the collector, that is preserved."""
    global _num_frozen
    with _lock:
        is_ours = _num_frozen > 0 or gc.get_freeze_count() == 0
        if is_ours:
            _num_frozen += 1
            gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            with _lock:
                _num_frozen -= 1
                if _num_frozen == 0:
                    gc.unfreeze()

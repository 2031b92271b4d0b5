"""User code that runs in the middle of a replay uninvited is kept out of it.

A signal handler runs in the main thread whenever it likes; one that saves a checkpoint before the job is
taken away must really save it. A finalizer runs when the garbage collector finds an old cycle; what it
prints or removes was meant.
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
    """Signal handlers run as if there were no replay; older garbage waits until it is over."""
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
    """Only what the replay itself makes is collected in it; a user who freezes has it that way."""
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

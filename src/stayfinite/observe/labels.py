"""Calls without the labels that torch writes for profilers.

`Optimizer.step`, `Optimizer.zero_grad` and a DataLoader's `next` each write one, whether or not a
profiler listens: 45 to 60 µs of a loop's turn, several times what the sentinel's check takes. While
none listens, the calls that go through us are made without.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import profiler

__all__ = ["without_labels"]

T = TypeVar("T")
_is_profiled = torch._C._autograd._profiler_enabled
_NOTHING = contextlib.nullcontext()
_MAIN = threading.main_thread().ident


def _silent(name: str, args: str | None = None) -> Any:
    return _NOTHING


def without_labels(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make this call; what it would write for profilers only where one is listening.

    >>> without_labels(max, 1, 2)
    2
    """
    kept = profiler.record_function
    if kept is _silent or _is_profiled() or threading.get_ident() != _MAIN:
        return call(*args, **kwargs)  # another thread would put back what it should not
    profiler.record_function = _silent  # type: ignore[assignment, misc]
    try:
        return call(*args, **kwargs)
    finally:
        profiler.record_function = kept  # type: ignore[misc]

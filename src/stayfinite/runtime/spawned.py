"""Processes that a watched script starts by itself (`mp.spawn`, `mp.Process`), watched as well.

A spawned process is a new interpreter that knows nothing of the watching; so what it is to run is
handed to it inside a `Spawned`, which watches first. DataLoader workers and other processes that are
not the script's own are left alone.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.process
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..locate.frames import is_user_file

if TYPE_CHECKING:
    from .script import ScriptRun

__all__ = ["Spawned", "watch_spawned"]

_here: ScriptRun | None = None
"""The run that watches this process; a forked child finds it here, a spawned one does not."""


class Spawned:
    """A process's target, with what it takes to watch it. Picklable, as `spawn` needs it."""

    def __init__(self, target: Callable[..., Any], make: Callable[[], ScriptRun]) -> None:
        self.target = target
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _here is not None:
            _here.leave()
        return self._make().run_call(functools.partial(self.target, *args, **kwargs))


@contextmanager
def watch_spawned(run: ScriptRun) -> Iterator[None]:
    """While it is entered, what the script starts is watched too."""
    global _here
    original = multiprocessing.process.BaseProcess.start
    count = 0

    @functools.wraps(original)
    def start(process: Any) -> None:
        nonlocal count
        if trains(process._target):
            process._target = Spawned(process._target, run.for_child(count))
            count += 1
        original(process)

    before, _here = _here, run
    multiprocessing.process.BaseProcess.start = start  # type: ignore[assignment]
    try:
        yield
    finally:
        multiprocessing.process.BaseProcess.start = original  # type: ignore[method-assign]
        _here = before


def trains(target: Any) -> bool:
    """Whether this may train: torch's own launcher, or a function of the script that knows torch."""
    if target is None:
        return False
    if getattr(target, "__module__", "") == "torch.multiprocessing.spawn":
        return True
    function = inspect.unwrap(getattr(target, "func", target))
    code = getattr(function, "__code__", None)
    if code is None or not is_user_file(code.co_filename):
        return False
    return any(
        isinstance(v, types.ModuleType) and v.__name__.partition(".")[0] == "torch"
        for v in function.__globals__.values()
    )

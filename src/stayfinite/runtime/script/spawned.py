"""Protects processes that a script starts itself (`mp.spawn`, `mp.Process`).

A spawned process is a new interpreter without our patches, so its target is wrapped in a `Spawned`, which installs them
first. DataLoader workers and other processes that do not train are left alone.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import multiprocessing.process
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ...locate.frames import is_user_file
from ...patches.firewall import Firewall
from ...patches.manager import Subscribers, Target, subscribe
from ..engine import Engine

__all__ = ["Spawned", "Watching", "watch_spawned"]

_REASON = "a process that the script starts to train in is watched as well"
_firewall = Firewall("watching the processes that the script starts")
_numbers = itertools.count()


class Watching(Protocol):
    """The run that protects a process."""

    engine: Engine

    def leave(self) -> None: ...

    def run_call(self, call: Callable[[], Any]) -> Any: ...

    def for_child(self, index: int) -> Callable[[], Watching]: ...


_here: Watching | None = None
"""The run that protects this process; a forked child inherits it, a spawned one does not."""


class Spawned:
    """The target of a process, and a function that makes its run. Picklable for `spawn`."""

    def __init__(self, target: Callable[..., Any], make: Callable[[], Watching]) -> None:
        self.target = target
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _here is not None:
            _here.leave()
        return self._make().run_call(functools.partial(self.target, *args, **kwargs))


@contextmanager
def watch_spawned(run: Watching) -> Iterator[None]:
    """In this block, processes that the script starts are protected too."""
    global _here
    if "processes" in run.engine.settings.without:
        yield
        return
    before, _here = _here, run
    target = Target(multiprocessing.process.BaseProcess, "start", _REASON, "processes")
    subscription = subscribe(target, _start, run)
    try:
        yield
    finally:
        _here = before
        _firewall.once(subscription.close)


def _start(original: Any, subscribers: Subscribers) -> Any:
    def start(process: Any) -> None:
        target = getattr(process, "_target", None)
        runs = list(subscribers)
        if target is None or not runs or not _firewall.call(trains, target):
            original(process)
            return
        process._target = Spawned(target, runs[-1].for_child(next(_numbers)))
        try:
            original(process)
        finally:
            process._target = target  # as the script made it

    return start


def trains(target: Any) -> bool:
    """Whether this may train: torch's own launcher, or a function of the script in a module that imports torch."""
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

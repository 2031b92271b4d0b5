"""Protects processes that a script starts itself (`mp.spawn`, `mp.Process`, the launchers of frameworks).

A spawned process is a new interpreter without our patches, so its target is wrapped in a `Spawned`, which installs them
first. A framework that starts the other ranks by a command of its own (`python train.py` with another LOCAL_RANK, as
Lightning does) gets `python -m stayfinite run train.py`. DataLoader workers and other processes that do not train are
left alone.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import multiprocessing.process
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ...locate.frames import is_user_file
from ...patches.firewall import Firewall
from ...patches.manager import Subscribers, Subscription, Target, close_all, subscribe
from ..engine import Engine

__all__ = ["Spawned", "Watching", "trains", "watch_spawned", "watched_command"]

_REASON = "a process that the script starts to train in is watched as well"
_firewall = Firewall("watching the processes that the script starts")
_numbers = itertools.count()


class Watching(Protocol):
    """The run that protects a process."""

    engine: Engine

    def leave(self) -> None: ...

    def run_call(self, call: Callable[[], Any]) -> Any: ...

    def for_child(self, index: int) -> Callable[[], Watching]: ...

    def command(self) -> list[str]: ...


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
    wanted = [
        (multiprocessing.process.BaseProcess, "start", _start),
        (subprocess.Popen, "__init__", _popen),
    ]
    open_ones: list[Subscription | None] = []
    try:
        for owner, name, make in wanted:
            target = Target(owner, name, _REASON, "processes")
            open_ones.append(_firewall.once(subscribe, target, make, run))
        yield
    finally:
        _here = before
        # What fails here is no failure of the script, which is over.
        _firewall.once(close_all, [one for one in open_ones if one is not None])


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


def _popen(original: Any, subscribers: Subscribers) -> Any:
    def init(process: Any, args: Any, *more: Any, **options: Any) -> None:
        runs = list(subscribers)
        if runs:
            env = options.get("env")
            args = _firewall.call(watched_command, args, env, runs[-1].command, fallback=args)
        original(process, args, *more, **options)

    return init


_RANKS = ("RANK", "LOCAL_RANK")


def watched_command(args: Any, env: Any, ours: Callable[[], list[str]]) -> Any:
    """The command of a process, watched if it is a Python script that is started as another rank.

    >>> python, other = sys.executable, {**os.environ, "LOCAL_RANK": "1"}
    >>> watched_command([python, "-u", "train.py", "3"], other, lambda: ["-m", "stayfinite", "run"])[1:]
    ['-u', '-m', 'stayfinite', 'run', 'train.py', '3']
    >>> watched_command([python, "train.py"], None, list)[1:]
    ['train.py']
    """
    if env is None or not isinstance(args, (list, tuple)):
        return args
    is_rank = any(env.get(name) not in (None, os.environ.get(name)) for name in _RANKS)
    if not is_rank or len(args) < 2 or args[0] != sys.executable:
        return args
    words = [os.fspath(word) for word in args]
    at = next((i for i, word in enumerate(words) if i and word not in ("-u", "-B", "-I")), 1)
    is_module = words[at] == "-m" and not words[at + 1].startswith(("stayfinite", "torch."))
    if not is_module and not words[at].endswith(".py"):
        return args
    return [*words[:at], *ours(), *words[at:]]

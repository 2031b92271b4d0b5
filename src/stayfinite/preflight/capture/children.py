"""Scripts that start training processes: one runs in place, several end the check."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ...patches.manager import Subscribers, Target, subscribe
from ...runtime.script.spawned import trains
from ...sandbox import redirect_for_good
from .launch import ELSEWHERE

__all__ = ["Elsewhere", "keep_children"]

_LAUNCHER = "torch.multiprocessing.spawn"


class Elsewhere(BaseException):
    """Raised if the script trains in child processes. A BaseException, so that the script does not catch it."""


class _Kept:
    """The target of a child process, with its files redirected. Picklable, for `spawn`."""

    def __init__(self, target: Callable[..., Any], folder: str) -> None:
        self.target, self.folder = target, folder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _parent != os.getppid():  # a forked one has it already
            redirect_for_good(self.folder)
        _patch(torch.autograd, "backward", "a training begins here", _leave, self)
        return self.target(*args, **kwargs)

    def leave(self) -> None:
        """Report that the child trains; nothing more is needed."""
        note = {"function": getattr(self.target, "__name__", "a function")}
        Path(self.folder, ELSEWHERE).write_text(json.dumps(note), encoding="utf-8")
        os._exit(1)


def _leave(original: Any, subscribers: Subscribers) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        for kept in subscribers:
            kept.leave()
        return original(*args, **kwargs)

    return backward


_parent = 0
"""The process whose forked children have their files held back already."""


def keep_children(folder: str) -> None:
    """Let training in a child process end the script; a single one is run in this process.

    Other processes (DataLoader workers, a function that prepares data) run with their files redirected.
    """
    global _parent
    _parent = os.getpid()
    _patch(BaseProcess, "start", "a training in another process is found", _start, folder)
    _patch(torch.multiprocessing, "spawn", "a single process is run here", _spawn, folder)


def _patch(owner: Any, name: str, reason: str, make: Any, subscriber: Any) -> None:
    """Patch until the process ends."""
    subscribe(Target(owner, name, reason, "check"), make, subscriber)


def _start(original: Any, subscribers: Subscribers) -> Any:
    def start(process: Any) -> None:
        target = process._target
        if getattr(target, "__module__", "") == _LAUNCHER:
            raise Elsewhere(getattr(process._args[0], "__name__", "a function"))
        for folder in subscribers:
            if trains(target):
                process._target = _Kept(target, folder)
        original(process)

    return start


def _spawn(original: Any, subscribers: Subscribers) -> Any:
    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *others: Any, **more: Any) -> Any:
        if nprocs == 1:
            fn(0, *args)
            return None
        return original(fn, args, nprocs, *others, **more)

    return spawn

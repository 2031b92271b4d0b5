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
    """The script trains in processes of its own. No `except Exception` of the script stops it."""


class _Kept:
    """What a process of the script's is to run, with its files held back. Picklable, for `spawn`."""

    def __init__(self, target: Callable[..., Any], folder: str) -> None:
        self.target, self.folder = target, folder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _parent != os.getppid():  # a forked one has it already
            redirect_for_good(self.folder)
        _patch(torch.autograd, "backward", "a training begins here", _leave, self)
        return self.target(*args, **kwargs)

    def leave(self) -> None:
        """It trains: that is all there is to know of it."""
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
    """From now on, training in a process that the script starts ends the script; one is run here.

    Other processes (DataLoader workers, a function that prepares data) go on, their files held back.
    """
    global _parent
    _parent = os.getpid()
    _patch(BaseProcess, "start", "a training in another process is found", _start, folder)
    _patch(torch.multiprocessing, "spawn", "a single process is run here", _spawn, folder)


def _patch(owner: Any, name: str, reason: str, make: Any, subscriber: Any) -> None:
    """For as long as this process lives."""
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

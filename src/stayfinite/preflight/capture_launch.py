"""A training for several processes, checked as one: what a launcher would have set, for one rank."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ..patches.manager import Subscribers, Target, subscribe
from ..runtime.spawned import trains
from ..sandbox import redirect_for_good

__all__ = ["ELSEWHERE", "Elsewhere", "as_one_rank", "keep_children", "needs_launcher", "num_ranks"]

ELSEWHERE = "elsewhere.json"
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MISSING = re.compile(r"KeyError: '(\w+)'|environment variable (\w+) expected, but not set")
_LAUNCHER = "torch.multiprocessing.spawn"


def num_ranks(environ: Mapping[str, str]) -> int:
    """How many processes a launcher has started; 0 without one.

    >>> num_ranks({"RANK": "1", "WORLD_SIZE": "4"}), num_ranks({})
    (4, 0)
    """
    if "RANK" not in environ:
        return 0
    size = environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def as_one_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the only process of a training, as `torchrun --nproc-per-node 1` sets it."""
    plain = {k: v for k, v in environ.items() if not k.startswith("TORCHELASTIC_")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    return {**plain, **ranks, **sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def needs_launcher(error: str, environ: Mapping[str, str]) -> bool:
    """Whether a script raised this because nobody has given it a rank.

    >>> needs_launcher("KeyError: 'LOCAL_RANK'", {})
    True
    >>> needs_launcher("KeyError: 'data'", {})
    False
    """
    found = _MISSING.search(error)
    name = (found[1] or found[2]) if found else ""
    return name in _NEEDED and name not in environ


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

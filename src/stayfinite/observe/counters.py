"""The loop's own counters, put back after its body was run again.

A loop that is handed a batch a second time counts it a second time: `enumerate`, `step += 1`, a trainer's
`global_step`. What counts decides when to accumulate, to save and to stop, so after every such turn
all plain numbers that the loop can reach are what they were: those in the variables of the functions
that are running, and in the attributes of objects there, modules included. Lists there that have
grown meanwhile (`losses.append(…)`) are cut to their length. Tensors and optimizers are none of its
business; they go back by other ways.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .rng import is_generator

__all__ = ["Counters", "Numbers", "frames_above", "own_generators", "variables"]

_NUMBERS = (int, float, bool)
_MAX_OBJECTS = 20_000
_MAX_DEPTH = 8
_MAX_KEYS = 1000
_MAX_PARTS = 100
_DICTS = (dict, OrderedDict, defaultdict)  # others may do anything when they are looked at
_CLOSED = (
    Tensor, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler, types.ModuleType, types.FunctionType, types.MethodType, type,
    torch.Generator,
)  # fmt: skip
# Ours, what other threads and processes count with, and what has told the outside world already.
_OTHERS = {
    "stayfinite", "threading", "_thread", "queue", "multiprocessing", "concurrent", "asyncio",
    "logging", "socket", "ssl", "selectors", "subprocess", "wandb", "mlflow", "tensorboard",
    "tensorboardX", "comet_ml", "neptune", "aim", "ray", "clearml",
}  # fmt: skip
_PASSING = (types.GeneratorType, zip)
_OPTIMIZED, _GENERATOR = 0x01, 0x20  # as in inspect.CO_…


class Numbers:
    """The plain numbers that some running functions can reach, as they are now."""

    def __init__(self, frames: list[types.FrameType]) -> None:
        spaces = [(f, variables(f)) for f in frames]
        self.frames = [(f, _numbers(names)) for f, names in spaces]
        objects = list(_reachable(frames))
        self.objects = [(o, _numbers(o.__dict__)) for o in objects]
        homes = [*(names for _, names in spaces), *(o.__dict__ for o in objects)]
        self.lists = [t for home in homes for t in _lists(home)]

    @classmethod
    def here(cls) -> Numbers | None:
        """Of all functions that are running now; None where somebody's object cannot be looked at."""
        try:
            return cls(frames_above(sys._getframe(1)))
        except Exception:
            return None

    def put_back(self) -> None:
        for frame, kept in self.frames:
            _write(frame, kept)
        for obj, kept in self.objects:
            for name, value in kept.items():
                if type(obj.__dict__.get(name)) in _NUMBERS and obj.__dict__[name] != value:
                    obj.__dict__[name] = value


class Counters:
    """What the loop that asks `stream` for its next batch counts with."""

    def __init__(self, stream: types.FrameType, count: int, failed: Numbers | None = None) -> None:
        """`stream`: the running generator's frame; `count`: the batches that it has given so far;
        `failed`: the numbers inside the turn that failed, with which it is run again."""
        self._after = Numbers(frames_above(stream))
        waiting = {id(f) for f, _ in self._after.frames}
        if failed is not None:  # functions that have returned meanwhile are none of it
            failed.frames = [(f, kept) for f, kept in failed.frames if id(f) in waiting]
        self._inside = failed or self._after
        # Where other threads run, a list may be filled by one of them.
        self._lists = [] if _has_others() else self._after.lists
        self._lengths = [len(t) for t in self._lists]
        self._indices = [(e, i - count) for e, i in _enumerators(stream)]

    @classmethod
    def of(
        cls, stream: types.FrameType, count: int, failed: Numbers | None = None
    ) -> Counters | None:
        """The same; None where somebody's object cannot be looked at."""
        try:
            return cls(stream, count, failed)
        except Exception:
            return None

    def again(self, ordinal: int) -> None:
        """The turn is run again; an `enumerate` over the stream gives it its number, from 0, again."""
        self._after.put_back()
        self._inside.put_back()
        self._set_indices(ordinal)

    def cut_lists(self) -> None:
        """A turn that was run again is over: what it has added is taken off.

        (Not for every batch: a turn may draw several of them into a list.)
        """
        for grown, length in zip(self._lists, self._lengths):
            del grown[length:]

    def note_lists(self, is_ours: bool) -> None:
        """A turn that is run again begins with these lengths; one that counts keeps what it adds."""
        self._lengths = [len(t) for t in self._lists] if is_ours else []

    def go_on(self, ordinal: int) -> None:
        """The next new batch: all as it was when the loop asked for it first."""
        self._after.put_back()
        self._set_indices(ordinal)

    def _set_indices(self, ordinal: int) -> None:
        for enumerator, start in self._indices:
            _set_index(enumerator, start + ordinal)


def _reachable(frames: list[types.FrameType]) -> Iterator[Any]:
    """Plain objects, breadth first, from the variables of the frames."""
    todo = deque((v, 0) for f in frames for v in list(variables(f).values()))
    seen: set[int] = set()
    while todo and len(seen) < _MAX_OBJECTS:
        value, depth = todo.popleft()
        if id(value) in seen or not _is_open(value):
            continue
        seen.add(id(value))
        yield value
        if depth < _MAX_DEPTH:
            inside = list(value.__dict__.values())
            inside += [
                v for part in inside if type(part) in (list, tuple) for v in part[:_MAX_PARTS]
            ]
            todo.extend((v, depth + 1) for v in inside)
        if issubclass(type(value), nn.Module):
            todo.extend((m, depth) for m in value.children())


def own_generators() -> list[Any]:
    """Sources of random numbers within reach of the functions that are running."""
    frames = frames_above(sys._getframe(1))
    homes: list[Any] = [variables(f) for f in frames]
    homes += [f.f_globals for f in frames if "site-packages" not in f.f_code.co_filename]
    homes += [o.__dict__ for o in _reachable(frames)]
    values = [v for home in homes for v in list(home.values())]
    return list({id(v): v for v in values if is_generator(v)}.values())


def _is_open(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, _CLOSED):
        return False
    try:
        home, names = kind.__module__, value.__dict__
    except Exception:  # whatever a lazy object raises when it is looked at
        return False
    if not isinstance(home, str) or home.split(".")[0] in _OTHERS:
        return False
    return isinstance(names, dict) and not home.startswith("torch.utils.data")


def _has_others() -> bool:
    """Whether threads are running that may write into a script's lists."""
    known = (threading.main_thread(), threading.current_thread())
    others = [t for t in threading.enumerate() if t not in known]
    return any(
        type(t).__name__ != "TMonitor" and not t.name.startswith("QueueFeederThread")
        for t in others
    )  # a progress bar's, and those that feed a loader's workers


def _numbers(names: Any) -> dict[str, Any]:
    return {k: v for k, v in list(names.items()) if type(v) in _NUMBERS and isinstance(k, str)}


def _lists(home: Any, depth: int = 0) -> Iterator[list[Any]]:
    """The lists among these values, and in dicts there (`history["loss"]`)."""
    for value in list(home.values()):
        if type(value) is list:
            yield value
        elif depth < 2 and type(value) in _DICTS and len(value) <= _MAX_KEYS:
            yield from _lists(value, depth + 1)


def frames_above(stream: types.FrameType) -> list[types.FrameType]:
    """The functions that wait for the stream, without ours and those that only pass batches on."""
    frame: types.FrameType | None = stream
    found: list[types.FrameType] = []
    while frame is not None and len(found) < 12:
        name = frame.f_globals.get("__name__", "")
        is_passing = frame.f_code.co_flags & _GENERATOR
        if not is_passing and not name.startswith(
            ("stayfinite", "runpy", "typer", "click", "pytest")
        ):
            found.append(frame)
        frame = frame.f_back
    return found


def variables(frame: types.FrameType) -> dict[str, Any]:
    """A function's variables; nothing stays behind that would keep them alive after a `del`."""
    names = frame.f_locals
    found = dict(names)
    _let_go(frame, names)
    return found


def _let_go(frame: types.FrameType, names: Any) -> None:
    """Before Python 3.13 a function's `f_locals` is a copy that the frame holds on to; it is also what
    `locals()` has given the function, if it asked: then it is not ours to empty."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _OPTIMIZED:
        if sys.getrefcount(names) <= _NOBODY_ELSE:
            names.clear()


def _count_holders() -> int:
    """How many hold such a copy when nobody but the frame and we do, counted the same way."""
    frame = sys._getframe()
    names = frame.f_locals

    def inner(frame: types.FrameType, names: Any) -> int:
        return sys.getrefcount(names)

    return inner(frame, names)


_NOBODY_ELSE = _count_holders()


def _write(frame: types.FrameType, kept: dict[str, Any]) -> None:
    """Give the variables of a running function back their values."""
    names = frame.f_locals
    changed = {k: v for k, v in kept.items() if type(names.get(k)) in _NUMBERS and names[k] != v}
    if changed:
        names.update(changed)
        if sys.version_info < (3, 13) and frame.f_code.co_flags & _OPTIMIZED:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    _let_go(frame, names)


def _enumerators(stream: types.FrameType) -> list[tuple[Any, int]]:
    """Each `enumerate` that counts what the stream gives, with the number that it gives next."""
    kind = builtins.enumerate
    found = [o for o in gc.get_objects() if type(o) is kind]
    return [(e, e.__reduce__()[1][1]) for e in found if _leads_to(e.__reduce__()[1][0], stream, 0)]  # type: ignore[misc]


def _leads_to(iterator: Any, stream: types.FrameType, depth: int) -> bool:
    """Whether this iterator draws from the stream, perhaps through a progress bar's generator."""
    if depth > 4:
        return False
    if type(iterator) is zip:
        return any(_leads_to(p, stream, depth + 1) for p in iterator.__reduce__()[1])
    if not isinstance(iterator, types.GeneratorType) or iterator.gi_frame is None:
        return False
    if iterator.gi_frame is stream:
        return True
    parts = [iterator.gi_yieldfrom, *variables(iterator.gi_frame).values()]
    return any(_leads_to(p, stream, depth + 1) for p in parts if type(p) in _PASSING)


def _set_index(enumerator: Any, index: int) -> None:
    """The counter lies first in the object; what the object itself says tells whether that holds."""
    place = ctypes.c_ssize_t.from_address(id(enumerator) + object.__basicsize__)
    if place.value != enumerator.__reduce__()[1][1]:
        return  # another interpreter lays it out differently, or counts beyond a machine word
    place.value = index

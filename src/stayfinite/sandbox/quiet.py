"""Mutes a replay: streams, logging, progress bars, trackers.

A stream is not replaced. Instead its own `write` is overridden while a replay runs, so that `sys.stdout` is the same object for
every thread at any time, and kept references to it are muted as well.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..patches import Target
from .box import Box, Rule, here, only_here

__all__ = ["RULES", "open_streams", "standard_streams", "stream_targets"]

_REASON = "what a replay says is not heard"
_COVERED = ("write", "writelines", "flush", "truncate", "read", "readline", "readlines")


def standard_streams() -> list[Any]:
    """The current and the original stdout and stderr with their layers, and stdin."""
    found: dict[int, Any] = {}
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.stdin):
        layer: Any = stream
        while layer is not None and id(layer) not in found:
            found[id(layer)] = layer
            layer = _below(layer)
    return list(found.values())


def _below(stream: Any) -> Any:
    """The buffer of a text stream and the raw file of a buffer, for real streams only."""
    if isinstance(stream, io.TextIOBase):
        return getattr(stream, "buffer", None)
    return getattr(stream, "raw", None) if isinstance(stream, io.BufferedIOBase) else None


def open_streams() -> list[Any]:
    """All file objects in this process that are open for writing, for `computing_only(streams=…)`.

    They are found by a search over all objects, which takes tens of milliseconds, so it is done once per investigation.
    """
    is_file: dict[type, bool] = {}
    found = []
    for one in gc.get_objects():
        kind = type(one)  # `isinstance` would call the object, which may have side effects
        if kind not in is_file:
            is_file[kind] = io.IOBase.__base__ in kind.__mro__
        if is_file[kind] and _is_writable(one):
            found.append(one)
    return found


def _is_writable(stream: Any) -> bool:
    try:
        return not stream.closed and bool(stream.writable())
    except Exception:
        return False  # a class that is not initialized completely


def stream_targets(
    streams: Iterable[Any],
) -> Iterator[tuple[Target, Callable[[Any, Any], Callable[..., Any]]]]:
    """The attributes to override in each stream: on the object, or on its class if that is not possible."""
    for stream in streams:
        has_room = hasattr(stream, "__dict__")
        for name in _COVERED:
            if not callable(getattr(stream, name, None)):
                continue
            if name.startswith("read") != (stream is sys.stdin):
                continue
            if has_room:
                yield Target(stream, name, _REASON, "sandbox"), _MAKERS[name][0]
            elif type(stream).__flags__ & _HEAP_TYPE:
                yield Target(type(stream), name, _REASON, "sandbox"), _MAKERS[name][1]


_HEAP_TYPE = 1 << 9
"""Whether the class is defined in Python, so that its attributes can be assigned."""


def _silent(name: str, is_method: bool) -> Callable[[Any, Any], Callable[..., Any]]:
    """A function that writes nothing in a replay that mutes this stream; `is_method`: `self` comes first."""

    def make(original: Callable[..., Any], subscribers: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            box = here.box
            if box is None or box not in subscribers:
                return original(*args, **kwargs)
            if name.startswith("read"):
                return box.refuse("reading from stdin")
            return _num_written(args[is_method]) if name == "write" else None

        return call

    return make


def _num_written(data: Any) -> int:
    return len(data) if isinstance(data, (str, bytes, bytearray)) else memoryview(data).nbytes


_MAKERS = {n: (_silent(n, is_method=False), _silent(n, is_method=True)) for n in _COVERED}


def _none(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    """Do nothing."""


def _new_bar(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    """Replace `tqdm.__new__`, which starts a thread and remembers permanently if that fails."""
    bar = object.__new__(args[0])
    with args[0].get_lock():
        args[0]._instances.add(bar)
    return bar


def _disabled_bar(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "disable": True})


def _iterate_bar(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    return iter(args[0].iterable)


def _iterate_tracked(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    return iter(args[1] if len(args) > 1 else kwargs["sequence"])


def _rules(module: str, names: str, act: Any = _none) -> list[Rule]:
    return [Rule(module, name, only_here(act), _REASON) for name in names.split()]


RULES: tuple[Rule, ...] = (
    *_rules("logging", "Logger._log Logger.handle Logger.callHandlers Logger.addHandler "
            "Logger.removeHandler Logger.setLevel Handler.handle basicConfig disable"),
    *_rules("sys", "unraisablehook"),
    *_rules("loguru._logger", "Logger._log"),
    *_rules("tqdm.std", "tqdm.update tqdm.close tqdm.clear tqdm.refresh tqdm.unpause tqdm.reset "
            "tqdm.set_description tqdm.set_description_str tqdm.set_postfix tqdm.set_postfix_str "
            "tqdm.moveto tqdm.display tqdm.write"),
    *_rules("tqdm.std", "tqdm.__new__", _new_bar),
    *_rules("tqdm.std", "tqdm.__init__", _disabled_bar),
    *_rules("tqdm.std", "tqdm.__iter__", _iterate_bar),
    *_rules("rich.live", "Live.start Live.stop Live.refresh Live.update"),
    *_rules("rich.progress", "Progress.start Progress.stop Progress.update Progress.advance Progress.reset "
            "Progress.refresh Progress.start_task Progress.stop_task Progress.remove_task"),
    *_rules("rich.progress", "Progress.add_task", lambda box, original, args, kwargs: -1),
    *_rules("rich.progress", "Progress.track", _iterate_tracked),
    *_rules("tensorboard.summary.writer.event_file_writer", "EventFileWriter.add_event "
            "EventFileWriter.flush EventFileWriter.close"),
    *_rules("torch.utils.tensorboard.writer", "SummaryWriter.flush SummaryWriter.close"),
    *_rules("wandb.sdk.wandb_run", "Run._log Run.log Run.finish Run.alert Run.save"),
)  # fmt: skip

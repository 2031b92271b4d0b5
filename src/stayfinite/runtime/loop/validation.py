"""Checks the results of a validation loop when it ends.

The variables of the loop are read once, when its loader is exhausted; nothing is computed, and nothing is read from a
device. Only variables that the loop itself binds count, and only NaN: a `best = inf` is normal.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
from types import FrameType
from typing import Any

from torch import Tensor

from ...locate.frames import is_user_file
from ...parsing import parsed
from ...records import Event
from ...report.text import short_path
from ..engine import Engine
from ..frames import calling_frames, variables
from .batch_tracker import BatchTracker

__all__ = ["ValidationChecks"]

_MOST = 4096


class ValidationChecks:
    """Reports NaN in results of evaluation loops, in one line per place."""

    def __init__(self, engine: Engine, tracker: BatchTracker) -> None:
        self._engine, self._tracker = engine, tracker
        self._reported: set[str | None] = set()

    def check(self, frame: FrameType) -> None:
        event = _find_nan(frame, self._tracker.num_batches, self._tracker.num_epochs)
        if event is not None and event.name not in self._reported:
            self._reported.add(event.name)
            self._engine.monitor.warn(event)


def _find_nan(frame: FrameType | None, step: int, epoch: int) -> Event | None:
    """A warning about the loop in this frame, or None."""
    mine = next((f for f in calling_frames(frame) if is_user_file(f.f_code.co_filename)), None)
    if mine is None:
        return None
    file, line = mine.f_code.co_filename, mine.f_lineno
    names = _made_in_loop(file, line)
    known = variables(mine) if names else {}
    bad = [n for n in names if _is_nan(known.get(n))]
    if not bad:
        return None
    shown = ", ".join(bad[:3])
    source = linecache.getline(file, line).strip()
    return Event(
        step=step, epoch=epoch, phase="loss", kind="validation", symptom="output",
        name=f"{file}:{line} {shown}", value=math.nan,
        message=f"{shown} {'is' if len(bad) == 1 else 'are'} nan after the loop at {short_path(file)}:{line} ({source}); "
        "nothing is trained on its data, and the training goes on as it is",
    )  # fmt: skip


def _is_nan(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, Tensor):
        is_plain = value.dim() == 0 and value.is_floating_point() and value.device.type == "cpu"
        return is_plain and not value.requires_grad and math.isnan(value.item())
    if isinstance(value, list):
        return any(isinstance(v, float) and math.isnan(v) for v in value[-_MOST:])
    return False


@functools.lru_cache(maxsize=64)
def _made_in_loop(file: str, line: int) -> tuple[str, ...]:
    """The names that the loop at this line binds, adds to or appends to."""
    loops = [n for n in _loops_of(file) if _is_head(n, line)]
    found: list[str] = []
    for node in (n for loop in loops for s in loop.body for n in ast.walk(s)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = node.func.value
            if node.func.attr in ("append", "extend") and isinstance(holder, ast.Name):
                found.append(holder.id)
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=8)
def _loops_of(file: str) -> list[ast.For]:
    """Kept for the file's other loops: to parse a long file takes as long as many steps."""
    try:
        tree = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [n for n in ast.walk(tree) if isinstance(n, ast.For)]


def _is_head(loop: ast.For, line: int) -> bool:
    return loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno)

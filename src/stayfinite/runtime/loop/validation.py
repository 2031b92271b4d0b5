"""Checks the results of a validation loop when it ends.

The variables of the loop are read once, when its loader is exhausted; nothing is computed, and nothing is read from a
device. Only variables that the loop itself binds count, and only NaN: a `best = inf` is normal.
"""

from __future__ import annotations

import linecache
import math
from types import FrameType
from typing import Any

from torch import Tensor

from ...locate.frames import is_user_file
from ...records import Event
from ...report.text import short_path
from ..engine import Engine
from ..frames import calling_frames, variables
from .batch_tracker import BatchTracker
from .loop_source import made_in_loop

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
    names = made_in_loop(file, line)
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

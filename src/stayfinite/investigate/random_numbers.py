"""Finds steps that fail because of the random numbers they drew.

After a skipped step the random state goes back, as if the batch had never been. If the numbers
themselves are the cause (a diffusion model drew the time 1), the next batch would meet the same
numbers, and so would every batch after it. So when two steps in a row fail on the same numbers, the
second is tried with the ones behind them; if that helps, the bad ones are left behind for good.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..locate.slice import Origin
from ..runtime.engine import Engine
from ..runtime.rng import RngState
from ..runtime.window import Replay, ReplayResult, Window
from .investigation import Investigation
from .laboratory import Laboratory

__all__ = ["failed_on_these", "move_on", "note_draw"]


@dataclass
class _Draw:
    start: RngState
    """Where the numbers of the last failed step begin."""
    following: RngState
    """Where the numbers begin that nobody has tried yet."""


_last: WeakKeyDictionary[Engine, _Draw] = WeakKeyDictionary()


def failed_on_these(engine: Engine, window: Window) -> bool:
    """Whether the last failed step began with the very same random numbers."""
    draw = _last.get(engine)
    return draw is not None and window.rng is not None and draw.start.is_same(window.rng)


def note_draw(investigation: Investigation) -> None:
    """A step has failed that is not investigated again: its numbers are remembered all the same."""
    start, after = investigation.rng_before, investigation.rng_after
    if start is not None and not start.is_same(after):
        _last[investigation.engine] = _Draw(start, after)


def move_on(
    investigation: Investigation, origin: Origin | None
) -> Generator[Replay, ReplayResult, bool]:
    """Whether the random numbers were to blame; then the generators stand behind them."""
    start, after = investigation.rng_before, investigation.rng_after
    lab = Laboratory(investigation, origin, seconds=math.inf)
    if start is None or start.is_same(after) or not lab.can_replay:
        return False
    draw = _last.get(investigation.engine)
    if draw is None or not draw.start.is_same(start):
        _last[investigation.engine] = _Draw(start, after)
        return False
    outcome, behind = yield from lab.redrawn(draw.following)
    if outcome != "finite":
        draw.following = behind
        return False
    draw.following.restore()
    del _last[investigation.engine]
    return True

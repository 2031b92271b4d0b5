"""Schedules of a class that the user has written: it counts its steps and sets the rate of its optimizer."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...locate.frames import is_user_file
from ...runtime.state import TrainState
from ...sandbox.compute import computing_only

__all__ = [
    "Formula",
    "StandIn",
    "by_counter",
    "first_bad_step",
    "held_by",
    "is_in",
    "own_schedules",
    "stand_in",
    "stand_in_for",
]

_MOST_BEFORE = 50

Formula = Callable[[int], Any]


class StandIn:
    """Parameter groups with only their rates.

    A real optimizer would be taken for one of the training, and its deletion for the end of the training.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self.param_groups = list(groups)
        self.defaults = dict(self.param_groups[0]) if self.param_groups else {}

    def step(self) -> None:
        """Schedules require this attribute."""


def own_schedules(state: TrainState) -> Iterator[Any]:
    """What has a `step` of the user's and holds an optimizer of the training."""
    kinds = [
        t
        for t in gc.get_objects()
        if issubclass(type(t), type) and _is_users(t.__dict__.get("step"))
    ]
    if not kinds:
        return
    for found in [s for s in gc.get_objects() if type(s) in kinds]:
        if held_by(state, found) is not None:
            yield found


def _is_users(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return isinstance(code, types.CodeType) and is_user_file(code.co_filename)


def held_by(state: TrainState, scheduler: Any) -> str | None:
    """Under which name a schedule holds its optimizer."""
    known = list(state.optimizers)
    values = getattr(scheduler, "__dict__", {})
    return next((k for k, v in values.items() if any(v is o for o in known)), None)


def stand_in(scheduler: Any, held: str = "optimizer") -> Any:
    """A copy of a schedule that moves nothing of the training's."""
    mine = copy.copy(scheduler)
    setattr(mine, held, stand_in_for(getattr(scheduler, held)))
    return mine


def stand_in_for(optimizer: Any) -> StandIn:
    """Groups with finite rates to begin with."""
    groups = []
    for theirs in optimizer.param_groups:
        first = theirs.get("initial_lr", optimizer.defaults.get("lr", 1.0))
        rate = theirs["lr"] if math.isfinite(theirs["lr"]) else first
        groups.append({**theirs, "params": [], "lr": rate, "initial_lr": first})
    return StandIn(groups)


def by_counter(state: TrainState, scheduler: Any) -> tuple[Formula, int] | None:
    """The rate as a function of the number that it counts its steps with, and where that is not finite."""
    held = held_by(state, scheduler)
    if held is None:
        return None
    numbers = {k: v for k, v in vars(scheduler).items() if type(v) is int}
    counted = _moved_by_step(stand_in(scheduler, held), numbers)
    if len(counted) != 1:
        return None

    def formula(number: int) -> Any:
        mine = stand_in(scheduler, held)
        setattr(mine, counted[0], number)
        mine.step()
        return getattr(mine, held).param_groups[0]["lr"]

    at = first_bad_step(formula, numbers[counted[0]])
    return None if at is None else (formula, at)


def _moved_by_step(scheduler: Any, numbers: dict[str, int]) -> list[str]:
    """The numbers that a schedule counts on when it is stepped."""
    with contextlib.suppress(Exception), computing_only():
        scheduler.step()
    return [k for k, v in numbers.items() if vars(scheduler).get(k) == v + 1]


def first_bad_step(function: Formula, at: int) -> int | None:
    """The first step at which the formula is not finite, where that is so around `at`."""
    found = next((step for step in (at, at - 1, at + 1) if _is_bad(function, step)), None)
    while found is not None and at - found < _MOST_BEFORE and _is_bad(function, found - 1):
        found -= 1
    return found


def _is_bad(function: Formula, step: int) -> bool:
    with contextlib.suppress(Exception), computing_only():
        return step >= 0 and not math.isfinite(float(function(step)))
    return False


def is_in(function: Any, file: str) -> bool:
    """Whether a function, or an object that can be called, is written in a file."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename == file

"""Detects whether the guard or the user's loop advances the scheduler under `guard.step`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..undo import attributes, entries

__all__ = ["Schedule"]


class Schedule:
    """Advances the scheduler after each applied step, unless the loop does so itself.

    This is known only after the first step: if the loop calls `scheduler.step()`, the scheduler has
    moved by then. So the guard's first call is delayed until the second step starts.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.is_ours: bool | None = None
        if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
            self.is_ours = False
        self.is_waiting = False
        self._since: list[Any] = []
        self._is_moved_back = False

    def before_step(self) -> None:
        if not self.is_waiting:
            return
        self.is_ours = _position(self.scheduler) == self._since
        self.is_waiting = False
        if self.is_ours:
            self.scheduler.step()

    def after_step(self) -> None:
        if self.is_ours:
            self.scheduler.step()
        elif self.is_ours is None:
            self.is_waiting, self._since = True, _position(self.scheduler)

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[None]:
        """Restore a scheduler that the loop advances, after an investigation."""
        if self.is_ours or self.scheduler is None:
            yield
            return
        undo = attributes(self.scheduler)()
        groups = getattr(self.scheduler, "optimizer", None)
        rates = [entries(g, skip=("params",))() for g in getattr(groups, "param_groups", ())]
        try:
            yield
        finally:
            if self._is_moved_back:
                self._is_moved_back = False  # a rollback has restored it
            else:
                for each in (undo, *rates):
                    each()

    def keep_as_it_is(self) -> None:
        self._is_moved_back = True

    def in_replay(self) -> None:
        """Advance it in a replay that starts at a snapshot."""
        if self.is_ours:
            self.scheduler.step()


def _position(scheduler: Any) -> list[Any]:
    """The position of a scheduler: all its numbers, and those of nested schedulers."""
    found: list[Any] = []
    todo, seen = [scheduler], set()
    while todo:
        each = todo.pop()
        if id(each) in seen or not hasattr(each, "__dict__"):
            continue
        seen.add(id(each))
        for key, value in sorted(vars(each).items()):
            if isinstance(value, (bool, int, float)):
                found.append((key, value))
            elif hasattr(value, "get_last_lr"):
                todo.append(value)
            elif isinstance(value, (list, tuple)):
                todo += [v for v in value if hasattr(v, "get_last_lr")]
                found += [(key, v) for v in value if isinstance(v, (int, float))]
    return found

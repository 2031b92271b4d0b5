"""Finds who advances the scheduler under `guard.step`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..undo import attributes, entries

__all__ = ["Schedule"]


class Schedule:
    """Who advances the scheduler? The guard, after each applied step, unless the loop does.

    That shows only after the first step: a loop that calls `scheduler.step()` itself has moved it
    by then. Until it is known, the guard's own call waits for the start of the second step.
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
        """A scheduler that the loop itself advances ends an investigation where it was."""
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
                self._is_moved_back = False  # a rollback has put it where it belongs
            else:
                for each in (undo, *rates):
                    each()

    def keep_as_it_is(self) -> None:
        self._is_moved_back = True

    def in_replay(self) -> None:
        """A step that is replayed on the way from a snapshot."""
        if self.is_ours:
            self.scheduler.step()


def _position(scheduler: Any) -> list[Any]:
    """Where a scheduler stands: every number that it and the ones inside it count with."""
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

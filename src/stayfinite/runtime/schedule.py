"""Who moves the scheduler under `guard.step`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

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
        self._since = 0
        self._is_moved_back = False

    def before_step(self) -> None:
        if not self.is_waiting:
            return
        self.is_ours = self.scheduler._step_count == self._since
        self.is_waiting = False
        if self.is_ours:
            self.scheduler.step()

    def after_step(self) -> None:
        if self.is_ours:
            self.scheduler.step()
        elif self.is_ours is None:
            self.is_waiting, self._since = True, self.scheduler._step_count

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[None]:
        """A scheduler that the loop itself advances ends a journey back where it was."""
        if self.is_ours or self.scheduler is None:
            yield
            return
        kept = copy.deepcopy(self.scheduler.state_dict())
        rates = [group["lr"] for group in self.scheduler.optimizer.param_groups]
        try:
            yield
        finally:
            if self._is_moved_back:
                self._is_moved_back = False  # a rollback has put it where it belongs
            else:
                self.scheduler.__dict__.update(kept)
                for group, rate in zip(self.scheduler.optimizer.param_groups, rates):
                    group["lr"] = rate

    def keep_as_it_is(self) -> None:
        self._is_moved_back = True

    def in_pass(self) -> None:
        """A step that is run again on a journey back."""
        if self.is_ours:
            self.scheduler.step()

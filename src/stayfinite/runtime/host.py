"""The interface of the engine that its parts use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch.optim import Optimizer

from ..config import Settings
from ..detect.check import StepCheck
from ..records import Event, Incident
from ..recover.policy import Policy
from .ranks.agreement import Ranks
from .ranks.meetings import Wish
from .state import TrainState
from .warn.limits import Limit
from .window import Failure, Window
from .window_log import WindowLog

if TYPE_CHECKING:
    from .journal import RunJournal


class Warns(Protocol):
    """Who keeps the warnings."""

    limits: list[Limit]

    def warn(self, event: Event, is_printed: bool = True) -> None: ...

    def forget_after(self, step: int) -> None: ...


__all__ = ["Host"]


class Host(Protocol):
    """The engine, as its parts see it."""

    state: TrainState
    settings: Settings
    policy: Policy
    checker: StepCheck
    ranks: Ranks
    log: WindowLog
    journal: RunJournal | None
    num_applied: int

    @property
    def lookout(self) -> Warns: ...

    def meet(self) -> None: ...

    def wish(self) -> Wish: ...

    def explain(self, window: Window, optimizers: list[Optimizer]) -> Failure | None: ...

    def publish(self, incident: Incident) -> Incident: ...

    def forget_due(self) -> None: ...

    def close_healthy(self, window: Window, is_followed: bool = False) -> Failure | None: ...

    def forget_known(self) -> None: ...

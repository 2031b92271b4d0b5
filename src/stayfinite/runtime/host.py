"""The interface of the engine that its parts use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch.optim import Optimizer

from ..config import Settings
from ..detect.check import StepCheck
from ..records import Event, Incident
from ..recover.policy import Policy
from .known import KnownIncidents
from .ranks.agreement import Ranks
from .ranks.meetings import DeepCheckVote
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


class ChecksState(Protocol):
    """The deep checks, as the ranks and the recovery see them."""

    def agree_on_snapshots(self) -> None: ...

    def vote(self) -> DeepCheckVote: ...

    def forget_due(self) -> None: ...


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
    known: KnownIncidents
    num_applied: int

    @property
    def lookout(self) -> Warns: ...

    @property
    def deep_checks(self) -> ChecksState: ...

    def explain(self, window: Window, optimizers: list[Optimizer]) -> Failure | None: ...

    def publish(self, incident: Incident) -> Incident: ...

    def close_healthy(self, window: Window, is_followed: bool = False) -> Failure | None: ...

"""The engine as a protocol, for its own parts: they cannot import the engine, which imports them."""

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


__all__ = ["Host"]


class Warns(Protocol):
    """Collects warnings."""

    limits: list[Limit]

    def warn(self, event: Event, is_printed: bool = True) -> None: ...

    def forget_after(self, step: int) -> None: ...


class DeepChecks(Protocol):
    """The methods of `DeepChecks` that the ranks and the recovery use."""

    def agree_on_snapshots(self) -> None: ...

    def vote(self) -> DeepCheckVote: ...

    def forget_due(self) -> None: ...


class Host(Protocol):
    """The attributes of the engine that its parts use."""

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
    def deep_checks(self) -> DeepChecks: ...

    def explain(self, window: Window, optimizers: list[Optimizer]) -> Failure | None: ...

    def publish(self, incident: Incident) -> Incident: ...

    def close_healthy(self, window: Window, is_followed: bool = False) -> Failure | None: ...

"""The exception classes.

StayfiniteError
├── UsageError            (also ValueError)  a wrong argument, setting or call; names the value and what is allowed
├── NonFiniteError        (also ArithmeticError)  policy "raise": carries the Incident
├── BudgetExceededError   too many steps were skipped; carries the last Incident
├── StageFailedError      a stage of a plan did not meet its condition
├── CheckpointError       a checkpoint that cannot or must not be used
│   └── UnreadableError   an unknown format, truncated, or inconsistent
└── MissingExtraError     (also ImportError)  names the exact `pip install` line
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BudgetExceededError",
    "CheckpointError",
    "MissingExtraError",
    "NonFiniteError",
    "StageFailedError",
    "StayfiniteError",
    "UnreadableError",
    "UsageError",
]


class StayfiniteError(Exception):
    """The base of every exception that stayfinite raises on purpose."""


class UsageError(StayfiniteError, ValueError):
    """A wrong argument, setting or call."""


class _CarriesIncident(StayfiniteError):
    def __init__(self, message: str, incident: Any = None) -> None:
        super().__init__(message)
        self.incident = incident
        """The `Incident`. Typed as Any, because `records` imports this module."""


class NonFiniteError(_CarriesIncident, ArithmeticError):
    """A step was not finite and the policy is "raise"; `.incident` has the explanation.

    For example:

        try:
            guard.step(loss_fn, batch)
        except NonFiniteError as error:
            print(error.incident.location.line, error.incident.diagnosis.cause)
    """


class BudgetExceededError(_CarriesIncident):
    """Too many steps were skipped; `.incident` is the last one."""


class StageFailedError(StayfiniteError):
    """A stage of a plan did not meet its condition, so the run ends before the next stage."""


class CheckpointError(StayfiniteError):
    """A checkpoint that cannot or must not be used."""


class UnreadableError(CheckpointError):
    """An unknown format, truncated, or inconsistent."""


class MissingExtraError(StayfiniteError, ImportError):
    """An optional package is needed; the message has the `pip install` line."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional package: pip install 'stayfinite[{extra}]'")

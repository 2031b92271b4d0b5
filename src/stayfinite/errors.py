"""The exception classes.

StayfiniteError
├── UsageError            (also ValueError)  a wrong argument, setting or call; names the value and the way out
├── NonFiniteError        (also ArithmeticError)  policy "raise": carries the Incident
├── BudgetExceededError   skipping went past its budget; carries the last Incident
├── StageFailedError      a stage of a plan did not show what it had to
├── CheckpointError       a checkpoint that cannot or must not be used
│   ├── UnreadableError   not a format that is known, truncated, or lying about itself
│   └── HostileFileError  reading it the usual way would run code
└── MissingExtraError     (also ImportError)  names the exact `pip install` line
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BudgetExceededError",
    "CheckpointError",
    "HostileFileError",
    "MissingExtraError",
    "NonFiniteError",
    "StageFailedError",
    "StayfiniteError",
    "UnreadableError",
    "UsageError",
]


class StayfiniteError(Exception):
    """Everything that stayfinite raises on purpose."""


class UsageError(StayfiniteError, ValueError):
    """A wrong argument, setting or call."""


class _CarriesIncident(StayfiniteError):
    def __init__(self, message: str, incident: Any = None) -> None:
        super().__init__(message)
        self.incident = incident
        """The `Incident`; not named as a type here, since records stand above errors."""


class NonFiniteError(_CarriesIncident, ArithmeticError):
    """A step went non-finite and the policy is "raise"; `.incident` has the whole story."""


class BudgetExceededError(_CarriesIncident):
    """Too many steps were skipped; `.incident` is the last one."""


class StageFailedError(StayfiniteError):
    """A stage of a plan did not show what it had to: the run ends before the next one."""


class CheckpointError(StayfiniteError):
    """A checkpoint that cannot or must not be used."""


class UnreadableError(CheckpointError):
    """Not a known format, truncated, or lying about itself."""


class HostileFileError(CheckpointError):
    """Loading this file the usual way would run code."""


class MissingExtraError(StayfiniteError, ImportError):
    """An optional package is needed; the message has the `pip install` line."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional package: pip install 'stayfinite[{extra}]'")

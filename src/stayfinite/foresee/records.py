"""The records of a prediction, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

__all__ = ["PHASES", "STATUSES", "Operation", "Verdict"]

PHASES = ("forward", "backward", "optimizer")
STATUSES = ("safe", "can_fail", "unknown")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operator call of a healthy step, and where it stands."""

    index: int
    """Its number in the capture, from 0."""
    op: str
    """The operator without overload: "aten.log"."""
    phase: str
    """forward | backward | optimizer"""
    node: str = ""
    """In the backward, the autograd node: "SqrtBackward0"."""
    file: str | None = None
    line: int | None = None
    source: str | None = None
    """The line that a user can change; in the backward that of the forward call."""
    module: str | None = None
    """Dotted path, "" for the root, None outside the model."""
    dtype: str = ""
    """Of its first result: "float16"."""
    autocast: str = ""
    """The dtype of the autocast that it ran under, "" outside of one."""
    step: int = 0
    """Which of the captured steps, from 0."""
    seen_lo: float | None = None
    seen_hi: float | None = None
    """Smallest and largest value that it gave; None for what is no number or holds nothing."""

    @property
    def name(self) -> str:
        """What an incident would call it."""
        return self.node or self.op


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one operator can give for all inputs in the box."""

    operation: Operation
    status: str
    """safe | can_fail | unknown"""
    condition: str = ""
    """When it fails, in words: "the sum of batch['mask'] is 0"; why it is not known."""
    kind: str = ""
    """The kind of failure: zero_denominator, log_of_zero, overflow, ... (a code of the catalogue)."""
    parts: tuple[str, ...] = ()
    """The parts of the batch that the condition depends on, as far as that is known."""
    operand: str = ""
    """Which input of the operator is at its limit: "other", "self"."""
    low: float | None = None
    high: float | None = None
    """The range of that operand in the box."""
    after: int | None = None
    """Index of an earlier operator that can fail: this one is given what that one makes."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise UsageError(f"`status` must be one of {', '.join(STATUSES)}, got {self.status!r}")

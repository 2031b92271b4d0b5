"""The records of a prediction, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

__all__ = ["STATUSES", "Operation", "Verdict"]

STATUSES = ("safe", "can_fail", "unknown")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operator call of a healthy step, with its place."""

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
    """The dtype of its first result: "float16"."""
    step: int = 0
    """The index of the captured step."""
    seen_lo: float | None = None
    seen_hi: float | None = None
    """Smallest and largest value of its result; None if it has no numbers."""

    @property
    def name(self) -> str:
        """Its name in an incident."""
        return self.node or self.op


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The possible results of one operator for all inputs in the box."""

    operation: Operation
    status: str
    """safe | can_fail | unknown"""
    condition: str = ""
    """The condition of the failure as text: "the sum of batch['mask'] is 0"; or why it is unknown."""
    kind: str = ""
    """The kind of failure: zero_denominator, log_of_zero, overflow, ... (a code of the catalogue)."""
    parts: tuple[str, ...] = ()
    """The parts of the batch on which the condition depends, as far as known."""
    low: float | None = None
    high: float | None = None
    """The range in the box of the input that is at its limit."""
    after: int | None = None
    """The index of an earlier operator that can fail, whose result this one uses."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise UsageError(f"`status` must be one of {', '.join(STATUSES)}, got {self.status!r}")

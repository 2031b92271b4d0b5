"""The ladder's records: changes, the result of each rung, conclusions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..plain import from_plain, to_plain

PROCESSES = "processes of its own"
"""Where the survey stops when the script starts several processes to train in."""

__all__ = ["Change", "LadderReport", "Outcome", "Survey"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a rung."""

    label: str
    """As the user wrote it: "lr=0.1x"."""
    kind: str
    """flag | config | env | knob"""
    key: str
    """The flag, the dotted key, the variable or the knob."""
    before: str | None = None
    after: str = ""
    file: str | None = None
    """The config file, for a config key."""
    flag: dict[str, Any] = field(default_factory=dict)
    """The flag in the script's own parser, for a flag."""

    @property
    def target(self) -> tuple[str, str | None, str]:
        """The target of the change; two changes of the same target exclude each other."""
        return (self.kind, self.file, self.key)

    @property
    def is_idle(self) -> bool:
        """Whether the value is unchanged, so that the rung would repeat the unchanged run."""
        return self.kind != "knob" and self.before is not None and self.before == self.after


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run of the script."""

    changes: tuple[Change, ...] = ()
    """What was changed in it; none for the unchanged run."""
    status: str = "failed"
    """survived | failed | diverging | crashed | timeout | idle"""
    step: int | None = None
    """The step at which it failed, or the last one that it was run to."""
    loss: float | None = None
    """The loss of the last step that was finite."""
    text: str = ""
    """The result in one line."""
    op: str | None = None
    file: str | None = None
    line: int | None = None
    cause: str | None = None
    is_half: bool = False
    """Whether the failing values were in half precision."""
    has_autocast: bool = False
    has_loader: bool = False
    duration_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        return self.status == "survived"

    @property
    def label(self) -> str:
        return " + ".join(c.label for c in self.changes) or "unchanged"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The properties of the script that were found without training."""

    flags: tuple[dict[str, Any], ...] = ()
    files: tuple[str, ...] = ()
    """Config files that it opened, in that order."""
    modules: tuple[str, ...] = ()
    """Its own Python files, the script last."""
    has_parser: bool = False
    has_accelerator: bool = False
    stopped_at: str = ""
    complaints: dict[str, str] = field(default_factory=dict)
    """Objections of the script's own parser to a requested value."""


@dataclass(frozen=True, kw_only=True)
class LadderReport:
    """The whole ladder: the failure, the result of each change, and the smallest fix."""

    target: str
    failing_step: int | None = None
    goal: int | None = None
    """The step that a rung has to finish to count as a survivor."""
    baseline: Outcome | None = None
    rungs: tuple[Outcome, ...] = ()
    sets: tuple[Outcome, ...] = ()
    """Several changes together; tried only if no single one survives."""
    smallest: tuple[Change, ...] = ()
    """The first single change that survives, or the smallest set."""
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def survivors(self) -> tuple[Outcome, ...]:
        """The single changes that survive, in the order of the ladder."""
        return tuple(r for r in self.rungs if r.is_alive)

    @property
    def has_failed(self) -> bool:
        """Whether there was a failure at all."""
        return self.failing_step is not None

    @property
    def exit_code(self) -> int:
        """0: a fix was found, or nothing failed; 1: no change and no combination survives."""
        return 0 if self.smallest or not self.has_failed else 1

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON text."""
        plain = {"kind": "stayfinite.ladder", "exit_code": self.exit_code, **to_plain(self)}
        return json.dumps(plain, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> LadderReport:
        """The report that `to_json` wrote.

        >>> report = LadderReport(target="train.py", failing_step=3)
        >>> LadderReport.from_json(report.to_json()) == report
        True
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise UsageError(f"not a ladder report: {e}") from e
        if not isinstance(data, dict) or data.get("kind") != "stayfinite.ladder":
            raise UsageError("not a ladder report: expected an object of kind 'stayfinite.ladder'")
        del data["kind"], data["exit_code"]
        return from_plain(cls, data)

"""The records of `stayfinite check`, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import UsageError
from ..plain import from_plain, to_plain
from ..records import Location

__all__ = [
    "ALL_GROUPS",
    "GROUPS",
    "STATUSES",
    "CheckReport",
    "Finding",
    "SkippedGroup",
    "failed",
    "passed",
    "skipped",
    "warned",
]

GROUPS = (
    "environment", "config", "data", "init", "forward", "edges", "precision", "stability",
)  # fmt: skip
"""The groups in the order in which they run and are shown."""
ALL_GROUPS = (*GROUPS, "resources", "proof")
"""With those that run only when they are asked for."""

STATUSES = ("pass", "warn", "fail", "skip")
_RANK = {"fail": 0, "warn": 1, "skip": 2, "pass": 3}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row of a group's table: what was checked, what was found, the action."""

    group: str
    check: str
    """The name of the check: "init/unregistered", "loss/at-start"."""
    status: str
    """pass | warn | fail | skip"""
    subject: str = ""
    """The layer, feature, sample, config key or file:line; "" for the whole."""
    value: str = ""
    """What was found, with figures."""
    action: str = ""
    """The action; "" on a pass."""
    why: str = ""
    """The reason, or the source of the threshold."""
    data: dict[str, Any] = field(default_factory=dict)
    """The figures for programs; only what JSON can hold."""
    weight: float = 1.0
    """How urgent, among findings of the same status, for "three things to do first"."""
    location: Location | None = None
    """The place of a failure: file, line, operator, module, as in an incident."""
    cause: str = ""
    """The cause, as a code of the catalogue; "" without a failure."""

    def __post_init__(self) -> None:
        if self.group not in ALL_GROUPS:
            raise UsageError(f"`group` must be one of {', '.join(ALL_GROUPS)}, got {self.group!r}")
        if self.status not in STATUSES:
            raise UsageError(f"`status` must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if self.status in ("warn", "fail") and not self.action:
            raise UsageError(f"`{self.check}` is a {self.status} and must say what to do")

    @property
    def is_problem(self) -> bool:
        return self.status in ("warn", "fail")


def passed(group: str, check: str, value: str = "", **more: Any) -> Finding:
    """A check that found nothing wrong."""
    return Finding(group=group, check=check, status="pass", value=value, **more)


def warned(group: str, check: str, value: str, action: str, **more: Any) -> Finding:
    """A finding to look at first; the run may still succeed."""
    return Finding(group=group, check=check, status="warn", value=value, action=action, **more)


def failed(group: str, check: str, value: str, action: str, **more: Any) -> Finding:
    """A finding that will break the run or make it worthless."""
    return Finding(group=group, check=check, status="fail", value=value, action=action, **more)


def skipped(group: str, check: str, value: str, **more: Any) -> Finding:
    """A check that was not possible; `value` gives the reason."""
    return Finding(group=group, check=check, status="skip", value=value, **more)


@dataclass(frozen=True, kw_only=True)
class SkippedGroup:
    """A group that was left out, and why."""

    group: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The result of one `stayfinite check`."""

    target: str
    findings: tuple[Finding, ...] = ()
    skipped: tuple[SkippedGroup, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each group took."""
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()
    """How the target was run, in words: how many steps were seen, what was held back."""

    KIND: ClassVar[str] = "stayfinite.check"

    @property
    def verdict(self) -> str:
        """ready | look first | do not start

        >>> CheckReport(target="train.py").verdict
        'ready'
        """
        if self.count("fail"):
            return "do not start"
        return "look first" if self.count("warn") or self.skipped else "ready"

    @property
    def exit_code(self) -> int:
        return 1 if self.count("fail") else 0

    def count(self, status: str) -> int:
        return sum(f.status == status for f in self.findings)

    def of_group(self, group: str) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.group == group)

    def first_things(self, number: int = 3) -> tuple[Finding, ...]:
        """The first actions: fails before warns, urgent ones first, without repetition.

        >>> f = failed("init", "init/nan", "1 NaN", "initialize it", subject="fc.weight")
        >>> w = warned("config", "config/lr", "0.1", "lower it", weight=9)
        >>> [x.check for x in CheckReport(target="t", findings=(w, f)).first_things()]
        ['init/nan', 'config/lr']
        """
        chosen: list[Finding] = []
        for f in sorted(self._problems(), key=_urgency):
            if not any(_is_same(c, f) for c in chosen):
                chosen.append(f)
        return tuple(chosen[:number])

    def also(self, first: Finding) -> int:
        """How many more findings are the same thing elsewhere."""
        return sum(_is_same(f, first) for f in self.findings) - 1

    def _problems(self) -> Iterable[Finding]:
        return (f for f in self.findings if f.is_problem)

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON text.

        >>> r = CheckReport(target="t", findings=(passed("data", "data/finite", "all"),))
        >>> CheckReport.from_json(r.to_json()) == r
        True
        """
        head = {"kind": self.KIND, "verdict": self.verdict, "exit_code": self.exit_code}
        return json.dumps({**head, **to_plain(self)}, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> CheckReport:
        """The report that `to_json` wrote; anything else is rejected with the reason."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise UsageError(f"not a check report: {e}") from e
        if not isinstance(data, dict) or data.get("kind") != cls.KIND:
            raise UsageError(f"not a check report: expected an object with kind {cls.KIND!r}")
        for key in ("kind", "verdict", "exit_code"):
            data.pop(key, None)
        return from_plain(cls, data)


def _is_same(a: Finding, b: Finding) -> bool:
    """The same thing to do: here and elsewhere, or here for two reasons."""
    return a.action == b.action and (a.check == b.check or a.subject == b.subject)


def _urgency(f: Finding) -> tuple[int, bool, float]:
    """What was seen to break at no known place comes behind what has one."""
    is_lost = bool(f.data.get("is_executed")) and (f.location is None or f.location.op is None)
    return _RANK[f.status], is_lost and f.cause != "bad_schedule", -f.weight

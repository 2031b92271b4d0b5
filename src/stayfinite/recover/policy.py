"""Policies as data: a ladder of responses to bad steps, each for a limited number of times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError

__all__ = ["Decision", "Outlook", "Policy", "Rung", "Tally"]

_NAMES = ("raise", "skip", "rollback", "sanitize", "parts", "auto", "heal")
_KINDS = ("raise", "skip", "rollback", "sanitize", "parts", "stop")
_SPIKES = ("ignore", "warn", "skip", "rollback", "raise")
_SANITIZERS = ("drop", "replace")


@dataclass(frozen=True)
class Rung:
    """One response of a ladder.

    `times` counts bad steps in a row for `skip` and `sanitize`, and rollbacks of the whole run for `rollback`; None means as often
    as the budgets of the policy allow. `lr_factor` and `skip_next` belong to `rollback`: the factor for the learning rate, and the
    number of further batches to skip.

    >>> Rung("rollback", times=2, lr_factor=0.5)
    Rung(kind='rollback', times=2, lr_factor=0.5, skip_next=0)
    """

    kind: str
    times: int | None = None
    lr_factor: float = 1.0
    skip_next: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UsageError(f"unknown rung {self.kind!r}; choose one of: {', '.join(_KINDS)}")
        if self.times is not None:
            _check_whole("times", self.times, 1)
        _check_factor(self.lr_factor)
        _check_whole("skip_next", self.skip_next, 0)
        if self.kind != "rollback" and (self.lr_factor != 1.0 or self.skip_next):
            raise UsageError(f"`lr_factor` and `skip_next` belong to 'rollback', not {self.kind!r}")


@dataclass
class Tally:
    """How much of the budgets is used."""

    num_consecutive: int = 0
    num_total: int = 0
    num_rollbacks: int = 0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Set if the state of a training has diverged, so that skipping batches cannot help."""

    reason: str
    """The evidence for it, as text."""
    change: str = ""
    """The change with which replays from the last healthy state passed; empty if there is none."""
    proof: str = ""
    lr_factor: float = 1.0
    lr_limit: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True)
class Decision:
    """The response to one bad step."""

    kind: str
    """raise | skip | rollback | sanitize | parts | heal | stop"""
    reason: str = ""
    lr_factor: float = 1.0
    skip_next: int = 0


@dataclass(frozen=True)
class Policy:
    """How to respond to bad steps, and for how long.

    >>> Policy.parse("skip").name
    'skip'
    >>> Policy.parse("ignore")
    Traceback (most recent call last):
    stayfinite.errors.UsageError: unknown policy 'ignore'; choose one of: raise, skip, rollback, sanitize, parts, auto, heal

    A ladder goes on to the next answer when one is used up, and stops the run at its end:

    >>> policy = Policy.ladder(Rung("skip", 3), Rung("rollback", 2, lr_factor=0.5, skip_next=4))
    >>> policy == Policy.parse("skip:3,rollback:2:lr=0.5:next=4")
    True
    >>> [policy.decide(Tally(n, n, r)).kind for n, r in ((1, 0), (3, 0), (4, 0), (5, 1), (6, 2))]
    ['skip', 'skip', 'rollback', 'rollback', 'stop']
    """

    name: str = "skip"
    max_consecutive_skips: int = 50
    """The run stops after this many bad steps in a row."""
    max_total_skips: int = 1000
    """The run stops after this many bad steps in total."""
    max_rollbacks: int = 20
    """The run stops after this many rollbacks."""
    lr_factor: float = 1.0
    """Policy `rollback`: the factor for the learning rate at each rollback."""
    skip_next: int = 0
    """Policy `rollback`: how many of the following batches are skipped as well."""
    sanitizer: str = "drop"
    """Policy `sanitize`: `drop` the samples that are not finite, or `replace` their bad values by 0."""
    on_spike: str = "warn"
    """The response to a spike of the loss or of the gradient norm: ignore, warn, skip, rollback or raise."""
    rungs: tuple[Rung, ...] = ()
    """A ladder of responses; `name` is "ladder" then."""

    def __post_init__(self) -> None:
        if self.rungs:
            object.__setattr__(self, "rungs", tuple(self.rungs))
            object.__setattr__(self, "name", "ladder")
            wrong = [r for r in self.rungs if not isinstance(r, Rung)]
            if wrong:
                raise UsageError(f"`rungs` must be Rung(...) each, got {wrong[0]!r}")
        elif self.name not in _NAMES:
            raise UsageError(f"unknown policy {self.name!r}; choose one of: {', '.join(_NAMES)}")
        for field in ("max_consecutive_skips", "max_total_skips", "max_rollbacks"):
            _check_whole(field, getattr(self, field), 1)
        _check_factor(self.lr_factor)
        _check_whole("skip_next", self.skip_next, 0)
        for field, choices in (("sanitizer", _SANITIZERS), ("on_spike", _SPIKES)):
            if getattr(self, field) not in choices:
                raise UsageError(
                    f"unknown `{field}` {getattr(self, field)!r}; choose one of: {', '.join(choices)}"
                )

    @classmethod
    def ladder(cls, *rungs: Rung, **others: Any) -> Policy:
        """Make a policy that goes from one response to the next, and stops the run after the last."""
        if not rungs:
            raise UsageError("a ladder needs at least one Rung(...)")
        return cls(rungs=rungs, **others)

    @classmethod
    def parse(cls, value: str | Policy, **others: Any) -> Policy:
        """Make a policy from its name or from a ladder as text."""
        if isinstance(value, Policy):
            return value
        if not isinstance(value, str):
            raise UsageError(
                f"`policy` must be one of {', '.join(_NAMES)} or a Policy, got {value!r}"
            )
        if "," in value or ":" in value:
            return cls(rungs=tuple(_parse_rung(part) for part in value.split(",")), **others)
        return cls(name=value, **others)

    def steps(self) -> tuple[Rung, ...]:
        """The responses in order, also for a policy with a plain name."""
        if self.rungs:
            return self.rungs
        if self.name == "rollback":
            return (Rung("rollback", None, self.lr_factor, self.skip_next),)
        if self.name in ("sanitize", "parts"):
            return (Rung(self.name), Rung("skip"))
        return (Rung("skip" if self.is_adaptive else self.name),)

    def check_ranks(self, num_ranks: int) -> None:
        """Raise a UsageError if this policy does not support this many ranks.

        >>> Policy.parse("parts").check_ranks(2)
        Traceback (most recent call last):
        stayfinite.errors.UsageError: policy 'parts' is for a training of one rank, got 2 ranks: ...
        """
        if num_ranks > 1 and any(r.kind == "parts" for r in self.steps()):
            raise UsageError(
                f"policy 'parts' is for a training of one rank, got {num_ranks} ranks: each would "
                "leave out parts of its own\n  try: --policy skip, or finite_mean in the loss itself"
            )

    @property
    def is_adaptive(self) -> bool:
        """Whether it stops, or heals, if an investigation shows that skipping cannot help."""
        return self.name in ("auto", "heal")

    def decide(
        self, tally: Tally, leave_out: tuple[str, ...] = (), outlook: Outlook | None = None
    ) -> Decision:
        """The response to a bad step, which `tally` counts already; kinds in `leave_out` are not possible now."""
        if outlook is not None and self.is_adaptive:
            return self._think(tally, leave_out, outlook)
        rungs = [r for r in self.steps() if r.kind not in leave_out] or [Rung("skip")]
        if rungs[0].kind != "raise":
            reason = self.stop_reason(tally.num_consecutive, tally.num_total)
            if reason:
                return Decision("stop", reason)
        left = tally.num_consecutive
        for rung in rungs:
            if rung.kind == "stop":
                break
            if rung.kind == "raise":
                return Decision("raise", "policy 'raise'")
            if rung.kind == "rollback":
                if tally.num_rollbacks < min(rung.times or self.max_rollbacks, self.max_rollbacks):
                    return Decision("rollback", "", rung.lr_factor, rung.skip_next)
                continue
            if rung.times is None or left <= rung.times:
                return Decision(rung.kind)
            left -= rung.times
        return Decision("stop", self._used_up(tally))

    def _think(self, tally: Tally, leave_out: tuple[str, ...], outlook: Outlook) -> Decision:
        can_heal = self.name == "heal" and bool(outlook.change) and "rollback" not in leave_out
        if can_heal and tally.num_rollbacks < self.max_rollbacks:
            return Decision("heal", outlook.reason)
        return Decision("stop", outlook.reason)

    def _used_up(self, tally: Tally) -> str:
        counts = [f"{tally.num_consecutive} bad steps in a row"]
        if tally.num_rollbacks:
            counts.append(f"{tally.num_rollbacks} rollbacks")
        return f"{' and '.join(counts)}: the policy {self.describe()} has nothing left to try"

    def describe(self) -> str:
        """The policy as text for `parse`.

        >>> Policy.ladder(Rung("skip", 3), Rung("rollback", 2, 0.5, 4)).describe()
        'skip:3,rollback:2:lr=0.5:next=4'
        """
        if not self.rungs:
            return self.name
        texts = []
        for r in self.rungs:
            text = r.kind if r.times is None else f"{r.kind}:{r.times}"
            text += f":lr={r.lr_factor:g}" if r.lr_factor != 1.0 else ""
            texts.append(text + (f":next={r.skip_next}" if r.skip_next else ""))
        return ",".join(texts)

    def stop_reason(self, num_consecutive: int, num_total: int) -> str | None:
        """The reason why the run must stop now, or None."""
        if num_consecutive > self.max_consecutive_skips:
            return f"{num_consecutive} steps in a row were skipped (limit {self.max_consecutive_skips})"
        if num_total > self.max_total_skips:
            return f"{num_total} steps were skipped in all (limit {self.max_total_skips})"
        return None


def _parse_rung(text: str) -> Rung:
    kind, *rest = [p.strip() for p in text.split(":")]
    found: dict[str, Any] = {}
    for part in rest:
        key, _, value = part.rpartition("=")
        name = {"": "times", "times": "times", "lr": "lr_factor", "next": "skip_next"}.get(key)
        try:
            if name is None:
                raise ValueError
            found[name] = float(value) if name == "lr_factor" else int(value)
        except ValueError:
            raise UsageError(
                f"cannot read {part!r} in the policy {text!r}; "
                "a rung is kind, kind:times, or rollback:times:lr=FACTOR:next=BATCHES"
            ) from None
    return Rung(kind, **found)


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"`{name}` must be a whole number of at least {least}, got {value!r}")


def _check_factor(value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 < value <= 1:
        raise UsageError(f"`lr_factor` must be above 0 and at most 1, got {value!r}")

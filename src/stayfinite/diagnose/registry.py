"""The registry of rules: pure functions from evidence to a finding. Invalid rules are rejected."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from .. import codes
from ..errors import UsageError
from ..records import Fix
from .evidence import Evidence
from .experiments import known_experiments

__all__ = [
    "Finding",
    "Rule",
    "all_rules",
    "register_rule",
    "rule",
    "unregister_rule",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding of a rule that applies."""

    confidence: float
    sentence: str
    """One or two sentences for the user, with the observed values."""
    facts: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    wants: tuple[str, ...] = ()
    """Experiments that would distinguish this cause from others, the most informative first."""
    proof: str | None = None
    """The experiment that verifies this cause if its outcome is finite, and otherwise refutes it."""


Applies = Callable[[Evidence], Finding | None]


@dataclass(frozen=True)
class Rule:
    """A rule: one way to recognize one cause."""

    cause: str
    applies: Applies
    name: str


_RULES: list[Rule] = []


def register_rule(cause: str, applies: Applies, name: str | None = None) -> Rule:
    """Add a custom rule for a cause of the catalogue, or for one registered in `codes`.

    >>> from stayfinite.diagnose import register_rule, unregister_rule
    >>> added = register_rule("log_of_zero", lambda evidence: None, name="mine")
    >>> unregister_rule(added)
    >>> register_rule("bad_luck", lambda evidence: None)
    Traceback (most recent call last):
    stayfinite.errors.UsageError: a rule for 'bad_luck': unknown cause; known: ...
    """
    known = [c.name for c in codes.all_codes("cause")]
    if cause not in known:
        raise UsageError(
            f"a rule for {cause!r}: unknown cause; known: {', '.join(known)}; "
            "add your own with stayfinite.codes.register(name, 'cause', definition)"
        )
    if not callable(applies):
        raise UsageError(f"a rule for {cause!r} must be callable, got {type(applies).__name__}")
    _check_signature(cause, applies)
    label = name or str(getattr(applies, "__name__", "rule"))
    if any(r.cause == cause and r.name == label for r in _RULES):
        raise UsageError(f"there already is a rule {label!r} for {cause!r}; give it another name")
    added = Rule(cause, applies, label)
    _RULES.append(added)
    return added


def _check_signature(cause: str, applies: Applies) -> None:
    try:
        signature = inspect.signature(applies)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(object())
    except TypeError:
        raise UsageError(
            f"a rule for {cause!r} takes one argument, the evidence: applies(evidence); "
            f"got applies{signature}"
        ) from None


def unregister_rule(added: Rule) -> None:
    """Remove a rule."""
    if added not in _RULES:
        raise UsageError(f"the rule {added.name!r} for {added.cause!r} is not registered")
    _RULES.remove(added)


def rule(cause: str) -> Callable[[Applies], Applies]:
    """Register the decorated function as a rule for `cause`."""

    def add(applies: Applies) -> Applies:
        register_rule(cause, applies, f"{applies.__module__.rpartition('.')[2]}.{applies.__name__}")
        return applies

    return add


def all_rules() -> tuple[Rule, ...]:
    """The rules in the order of registration."""
    return tuple(_RULES)


def check_finding(made_by: Rule, finding: object) -> Finding | None:
    """Validate the result of a rule."""
    who = f"the rule {made_by.name!r} for {made_by.cause!r}"
    if finding is None:
        return None
    if not isinstance(finding, Finding):
        raise UsageError(f"{who} must return a Finding or None, got {type(finding).__name__}")
    if not 0.0 <= finding.confidence <= 1.0:
        raise UsageError(f"{who}: confidence must be from 0 to 1, got {finding.confidence!r}")
    asked = {*finding.wants, *([finding.proof] if finding.proof else [])}
    asked |= {f.experiment for f in finding.fixes if f.experiment}
    known = known_experiments()
    unknown = (
        sorted(asked - set(known)) if known else []
    )  # no experiments are loaded with the rules alone
    if unknown:
        raise UsageError(
            f"{who} asks for unknown experiments {', '.join(unknown)}; "
            f"known: {', '.join(sorted(known))}"
        )
    return finding

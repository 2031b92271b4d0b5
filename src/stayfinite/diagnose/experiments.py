"""The registry of experiments: name, question, and the function that runs it.

Rules request experiments by name. Each is a file in `investigate/experiments/` that registers itself when it is imported. An
unknown name is rejected when a rule requests it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import UsageError

__all__ = ["ExperimentKind", "experiment", "known_experiments", "question_of", "runner_of"]

R = TypeVar("R", bound=Callable[..., Any])


@dataclass(frozen=True)
class ExperimentKind:
    """One change for a replay of the failing step."""

    name: str
    question: str
    """The change, as a phrase for the report."""
    runner: Callable[..., Any]


_KINDS: dict[str, ExperimentKind] = {}


def experiment(name: str, question: str) -> Callable[[R], R]:
    """Register the decorated function `runner(laboratory, evidence)` as an experiment."""

    def add(runner: R) -> R:
        if name in _KINDS:
            raise UsageError(f"there already is an experiment {name!r}; give it another name")
        _KINDS[name] = ExperimentKind(name, question, runner)
        return runner

    return add


def known_experiments() -> tuple[str, ...]:
    """The names of all loaded experiments."""
    return tuple(_KINDS)


def question_of(name: str) -> str:
    return _KINDS[name].question


def runner_of(name: str) -> Callable[..., Any] | None:
    kind = _KINDS.get(name)
    return kind.runner if kind is not None else None

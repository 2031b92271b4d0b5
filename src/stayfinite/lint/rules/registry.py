"""The registry of rules: per operation, per function, per file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...errors import UsageError
from ..context import Context, Hit
from ..module import Module
from ..operation import Operation

__all__ = ["END_OF_FILE", "END_OF_FUNCTION", "ON_OPERATION", "end_of_file", "end_of_function", "on"]

OnOperation = Callable[[Operation, Context], None]
OnFunction = Callable[[Context], None]
OnFile = Callable[[Module, list[Context]], Iterable[Hit]]

ON_OPERATION: dict[str, list[OnOperation]] = {}
END_OF_FUNCTION: list[OnFunction] = []
END_OF_FILE: list[OnFile] = []


def on(*names: str) -> Callable[[OnOperation], OnOperation]:
    """A rule for the operations of these names."""
    if not names:
        raise UsageError("a rule needs the name of at least one operation")

    def add(rule: OnOperation) -> OnOperation:
        for name in names:
            ON_OPERATION.setdefault(name, []).append(rule)
        return rule

    return add


def end_of_function(rule: OnFunction) -> OnFunction:
    """A rule for a function after it was read; the loop's calls are in `context.events`."""
    END_OF_FUNCTION.append(rule)
    return rule


def end_of_file(rule: OnFile) -> OnFile:
    """A rule for a file after all of its functions were read."""
    END_OF_FILE.append(rule)
    return rule

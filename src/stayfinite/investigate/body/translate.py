"""Maps the names of a function's arguments to the expressions of a call."""

from __future__ import annotations

import ast
import types
from typing import Protocol

from torch import nn

from .access import Reader, Verdict
from .values import Path, Value

__all__ = ["Summary", "translate"]


class Summary(Protocol):
    """The effects of a call of a user's function, in terms of its parameters."""

    outside: str | None
    is_training: bool
    is_backward: bool
    is_step: bool
    optimizers: tuple[object, ...]
    is_exchanging: bool
    needs_protection: bool
    """Whether it would write to globals, or do what a replay omits, if it were run unchanged."""
    reads: set[Path]
    mutates: set[Path]
    replaces: set[Path]
    result: Value


def translate(
    func: types.FunctionType,
    summary: Summary,
    node: ast.Call,
    reader: Reader,
    is_bound: bool,
    verdict: Verdict,
) -> None:
    """Maps the parameter names to the expressions of the call."""
    code = func.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given: dict[str, ast.expr] = {k.arg: k.value for k in node.keywords if k.arg}
    rest = list(names)
    if is_bound and rest:
        own = rest.pop(0)
        if isinstance(node.func, ast.Attribute) and not _is_called_itself(node.func, reader):
            given[own] = node.func.value
        elif isinstance(node.func, (ast.Attribute, ast.Name)):
            given[own] = node.func
    given.update(zip(rest, node.args))
    for source, target in (
        (summary.reads, verdict.reads),
        (summary.mutates, verdict.mutates),
        (summary.replaces, verdict.replaces),
    ):
        for path in source:
            if path[0] not in names:
                target.add(path)
                continue
            prefix = reader.env.path(given[path[0]]) if path[0] in given else None
            if prefix is not None:
                target.add((*prefix, *path[1:]))


def _is_called_itself(name: ast.Attribute, reader: Reader) -> bool:
    """Whether it is a module (`self.norm(x)`), and not a method of what stands before the dot."""
    target = reader.value(name)
    return target.is_known and isinstance(target.obj, nn.Module)

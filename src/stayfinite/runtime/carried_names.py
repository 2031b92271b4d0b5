"""Finds the variables that a loop carries from one iteration to the next, and on which its loss depends.

Only the source is read. An accumulator (`total += loss`) is not among them: no loss is computed from it.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..parsing import parsed

__all__ = ["CarriedNames", "VariablePath", "carried_names"]

VariablePath = tuple[str, ...]
"""`self.state["h"]` is ("self", ".state", "[h")."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
"""Libraries are large, and keep such states in the script's objects."""
_TRAINING = ("backward", "grad")


class CarriedNames(NamedTuple):
    """Of one place in a script."""

    carried: tuple[VariablePath, ...] = ()
    written: frozenset[str] = frozenset()
    """All names that an iteration assigns."""


@dataclass
class _Statement:
    """What a simple statement, or the head of a compound one, reads and writes."""

    reads: list[VariablePath]
    writes: list[VariablePath]
    is_training: bool
    lines: range


@functools.lru_cache(maxsize=64)
def carried_names(file: str, line: int) -> CarriedNames:
    """For the innermost loop around this line; without one, for the function, whose objects outlive a call."""
    if _INSTALLED.search(file):
        return CarriedNames()
    try:
        tree = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return CarriedNames()
    home: ast.AST = tree
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, (*_LOOPS, *_FUNCTIONS)) and node.lineno <= line <= _end(node):
            home = node
    if isinstance(home, ast.Module):
        return CarriedNames()
    found = list(_statements(getattr(home, "body", [])))
    wanted = _needed(found, line)
    carried = [p for p in wanted if _is_read_first(p, found)]
    if isinstance(home, _FUNCTIONS):
        carried = [p for p in carried if len(p) > 1]
    return CarriedNames(
        tuple(carried), frozenset(w[0] for s in found for w in s.writes if len(w) == 1)
    )


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _needed(found: list[_Statement], line: int) -> list[VariablePath]:
    """The variables on which the training's own calls, and the call at this line, depend."""
    needed = {r for s in found if s.is_training or line in s.lines for r in s.reads}
    while True:
        more = {
            r for s in found if any(_overlaps(w, n) for w in s.writes for n in needed) for r in s.reads
        }  # fmt: skip
        if more <= needed:
            return sorted(needed)
        needed |= more


def _is_read_first(path: VariablePath, found: list[_Statement]) -> bool:
    """Whether an iteration reads what the one before has written."""
    for statement in found:
        if path in statement.reads:
            return any(_overlaps(w, path) for s in found for w in s.writes)
        if any(path[: len(w)] == w for w in statement.writes):
            return False
    return False


def _overlaps(a: VariablePath, b: VariablePath) -> bool:
    return a[: len(b)] == b[: len(a)]


def _statements(body: list[ast.stmt]) -> Iterator[_Statement]:
    for node in body:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [h.body for h in getattr(node, "handlers", [])]
        is_compound = any(blocks)
        parts = [c for c in ast.iter_child_nodes(node) if isinstance(c, (ast.expr, ast.withitem))]
        last = max((p.lineno for p in parts if isinstance(p, ast.expr)), default=node.lineno)
        yield _read(parts, node, range(node.lineno, (last if is_compound else _end(node)) + 1))
        for block in blocks:
            yield from _statements(block)


def _read(parts: Sequence[ast.AST], node: ast.stmt, lines: range) -> _Statement:
    statement = _Statement([], [], False, lines)
    for part in parts:
        _visit(part, statement)
    if isinstance(node, ast.AugAssign):
        statement.reads += [path for path in statement.writes if path not in statement.reads]
    return statement


def _visit(node: ast.AST, statement: _Statement) -> None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        statement.is_training |= node.func.attr in _TRAINING
    path = _path_of(node)
    if path is None:
        for child in ast.iter_child_nodes(node):
            _visit(child, statement)
        return
    if isinstance(getattr(node, "ctx", None), ast.Store):
        statement.writes.append(path)
        if isinstance(node, ast.Subscript) and not _is_key(node.slice):
            statement.reads.append(path)  # a part of it is written
    else:
        statement.reads.append(path)
    for child in ast.walk(node):
        if isinstance(child, ast.Subscript) and not _is_key(child.slice):
            _visit(child.slice, statement)


def _is_key(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and isinstance(index.value, (str, int))


def _path_of(node: ast.AST) -> VariablePath | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        owner = _path_of(node.value)
        return None if owner is None else (*owner, f".{node.attr}")
    if isinstance(node, ast.Subscript):
        owner = _path_of(node.value)
        if owner is None or not _is_key(node.slice):
            return owner
        key = node.slice
        assert isinstance(key, ast.Constant)
        return (*owner, f"[{key.value!r}")
    return None

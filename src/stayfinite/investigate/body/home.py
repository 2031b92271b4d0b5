"""Finds the body to run again: the innermost loop around the current line, or the function."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from .scene import Scene
from .source import function_source, source_tree

__all__ = ["Home", "calls_at", "homes_of"]

Loop = ast.For | ast.While | ast.AsyncFor
_Place = tuple[int, int]


@dataclass(frozen=True)
class Home:
    """A body to run again."""

    node: ast.AST
    """The loop, the function or the module."""
    statements: list[ast.stmt]
    """The executed statements, including the current one; of open blocks, the executed part."""
    following: list[ast.stmt]
    """The rest of the body."""
    arguments: tuple[str, ...] = ()
    """For a function: its parameter names."""

    @property
    def is_loop(self) -> bool:
        return isinstance(self.node, Loop)


def homes_of(scene: Scene, instead: list[ast.stmt] | None = None) -> list[Home]:
    """The bodies around the current line, the innermost first.

    `instead`: a replacement of the current statement.
    """
    source = function_source(scene.code) if scene.is_function else None
    root: ast.AST | None = source.node if source else None
    if not scene.is_function:
        root = source_tree(scene.file)
    if root is None or isinstance(root, ast.Lambda):
        return []
    place = (scene.line, -1 if scene.column is None else scene.column)
    nodes = [root, *_loops(root, place)]
    found = [_home(node, place, instead) for node in nodes]
    return found[::-1]


def _home(node: ast.AST, place: _Place, instead: list[ast.stmt] | None) -> Home:
    body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
    if isinstance(node, Loop) and _is_at_head(node, place):
        return Home(node, list(body), [])
    index = _current(body, place)
    arguments: tuple[str, ...] = ()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = tuple(a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg))
    return Home(node, _until(body, place, instead), _rest(body, index, place), arguments)


def _rest(body: list[ast.stmt], index: int, place: _Place) -> list[ast.stmt]:
    """The statements after the current one, including those in the open blocks around it."""
    inner: list[ast.stmt] = []
    if index >= 0 and not isinstance(body[index], Loop):
        for block in _blocks(body[index]):
            if any(_holds(s, place) for s in block):
                inner = _rest(block, _current(block, place), place)
    return [*inner, *body[index + 1 :]]


def _is_at_head(loop: ast.AST, place: _Place) -> bool:
    """For a loop that requests its next item: the iteration of its whole body is over."""
    if not isinstance(loop, ast.For):
        return False
    first = loop.body[0]
    return (loop.lineno, -1) <= place < (first.lineno, max(first.col_offset, 0))


def _loops(root: ast.AST, place: _Place) -> Iterator[Loop]:
    """The loops around the current line, outermost first; not those of inner functions."""
    for child in ast.iter_child_nodes(root):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(child, Loop) and (
            any(_holds(s, place) for s in child.body) or _is_at_head(child, place)
        ):
            yield child
        yield from _loops(child, place)


def _holds(node: ast.stmt | ast.expr, place: _Place) -> bool:
    line, column = place
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    if column < 0:
        return node.lineno <= line <= end[0]
    return (node.lineno, node.col_offset) <= (line, column) < end


def _current(body: list[ast.stmt], place: _Place) -> int:
    inside = [i for i, s in enumerate(body) if _holds(s, place)]
    if inside:
        return inside[-1]
    before = [i for i, s in enumerate(body) if (s.lineno, s.col_offset) <= (place[0], place[1])]
    return before[-1] if before else -1


def _until(body: list[ast.stmt], place: _Place, instead: list[ast.stmt] | None) -> list[ast.stmt]:
    """The statements up to the current one."""
    index = _current(body, place)
    if index < 0:
        return []
    current = body[index]
    if not _holds(current, place):
        return body[: index + 1]
    return [*body[:index], *_entered(current, place, instead)]


def _entered(statement: ast.stmt, place: _Place, instead: list[ast.stmt] | None) -> list[ast.stmt]:
    """The executed part of an open compound statement.

    The current branch of an `if` is known, so its condition need not be computed. A handler of an open `try` would catch what
    ends a replay.
    """
    for block in _blocks(statement):
        if not any(_holds(s, place) for s in block):
            continue
        inner = _until(block, place, instead)
        if isinstance(statement, (ast.With, ast.AsyncWith, ast.For, ast.While, ast.AsyncFor)):
            if block is not statement.body:
                return inner
            cut = copy.copy(statement)
            cut.body = inner
            if isinstance(
                statement, ast.While
            ):  # what would end it may come behind the current line
                cut.body = [
                    *inner,
                    ast.copy_location(ast.Break(), inner[-1] if inner else statement),
                ]
            if not isinstance(cut, (ast.With, ast.AsyncWith)):
                cut.orelse = []
            return [cut]
        if isinstance(statement, ast.Try) and block is not statement.body:
            return [*([] if block is not statement.finalbody else statement.body), *inner]
        if isinstance(statement, ast.If) and _binds(statement.test):
            return [ast.copy_location(ast.Expr(statement.test), statement.test), *inner]
        return inner
    if instead is not None:
        return instead
    return [statement] if not _blocks(statement) else []


def _binds(test: ast.expr) -> bool:
    return any(isinstance(n, ast.NamedExpr) for n in ast.walk(test))


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return []
    names = ("body", "orelse", "finalbody")
    found = [b for n in names if isinstance(b := getattr(statement, n, None), list)]
    found += [h.body for h in getattr(statement, "handlers", [])]
    return found + [c.body for c in getattr(statement, "cases", [])]


def calls_at(scene: Scene) -> list[ast.Call]:
    """The calls that may be running in the current statement, the most likely first."""
    found = homes_of(scene)
    leaf: ast.stmt | None = found[0].statements[-1] if found and found[0].statements else None
    while leaf is not None and _blocks(leaf):
        body = _blocks(leaf)[0]
        leaf = body[-1] if body else None
    calls = [n for n in ast.walk(leaf) if isinstance(n, ast.Call)] if leaf is not None else []
    place = (scene.line, scene.column)
    return sorted(calls, key=lambda n: (n.lineno, n.col_offset) != place)

"""Reads in the source of a loop what it binds, whether it trains, and how it goes on."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from ...parsing import parsed

__all__ = ["has_backward", "is_way_out", "made_in_loop", "way_on"]


@functools.lru_cache(maxsize=64)
def made_in_loop(file: str, line: int, is_inside: bool = False) -> tuple[str, ...]:
    """The names that the loop at this line binds, adds to or appends to; `is_inside`: the line is in its body."""
    found: list[str] = []
    for node in _nodes_of_loops(file, line, is_inside):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = node.func.value
            if node.func.attr in ("append", "extend") and isinstance(holder, ast.Name):
                found.append(holder.id)
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=64)
def has_backward(file: str, line: int, is_inside: bool = False) -> bool:
    """Whether the loop at this line runs a backward; `is_inside`: the line is in its body."""
    nodes = _nodes_of_loops(file, line, is_inside)
    return any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in nodes)


@functools.lru_cache(maxsize=64)
def is_way_out(file: str, line: int) -> bool:
    """Whether a `break` or a `return` is at this line, in a loop."""
    nodes = _nodes_of_loops(file, line, is_inside=True)
    ways = (n for n in nodes if isinstance(n, (ast.Break, ast.Return)))
    return any(n.lineno <= line <= (n.end_lineno or n.lineno) for n in ways)


@functools.lru_cache(maxsize=64)
def way_on(file: str, line: int, name: str) -> int | None:
    """The line of the first `continue` behind the statement that binds this name, in the loop at this line."""
    nodes = list(_nodes_of_loops(file, line))
    names = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    bound = max((n.lineno for n in names if n.id == name), default=0)
    ways = [n.lineno for n in nodes if isinstance(n, ast.Continue) and n.lineno >= bound]
    return min(ways, default=None)


def _nodes_of_loops(file: str, line: int, is_inside: bool = False) -> Iterator[ast.AST]:
    try:
        tree = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return iter(())
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For) and _is_at(n, line, is_inside)]
    return (n for loop in loops for s in loop.body for n in ast.walk(s))


def _is_at(loop: ast.For, line: int, is_inside: bool) -> bool:
    end = loop.end_lineno if is_inside else loop.iter.end_lineno
    return loop.lineno <= line <= (end or loop.lineno)

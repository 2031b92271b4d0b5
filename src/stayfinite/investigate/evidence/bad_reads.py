"""Whether a line of the data pipeline made a bad value or read one that is stored: what it indexes is looked at.

A line such as `x, y = self.images[i] / 255, convert(self.labels[i])` computes and calls, and still the value may have been bad
where it is stored.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ...remedies.source import Source
from ..fixes.where_set import source_of

__all__ = ["has_read_bad"]

_PLAIN = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp,
    ast.expr_context, ast.operator, ast.unaryop,
)  # fmt: skip
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def has_read_bad(frame: FrameType, line: int, is_bad: Callable[[Any], bool]) -> bool:
    """Whether an element that this line of the frame takes from something is bad by itself.

    The line has been run already, so what it has assigned is no longer what it read.
    """
    source = source_of(frame.f_code.co_filename)
    statement = source.statement_at(line) if source is not None else None
    if source is None or statement is None:
        return False
    nodes = list(_without_body(statement))
    written = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in nodes:
        if _is_element(source, node) and not written & _names(node):
            with contextlib.suppress(Exception):  # an index that no longer fits
                code = compile(ast.Expression(node), frame.f_code.co_filename, "eval")  # type: ignore[arg-type]
                if is_bad(eval(code, frame.f_globals, frame.f_locals)):
                    return True
    return False


def _without_body(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement; of a loop or a condition, those of its head."""
    yield statement
    for name, value in ast.iter_fields(statement):
        if name not in _BODIES:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _without_body(child)


def _is_element(source: Source, node: ast.AST) -> bool:
    """`a.b[i]` without calls, and not as a part of `a.b[i].c[j]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return False
    if not all(isinstance(n, _PLAIN) for n in ast.walk(node)):
        return False
    inner, outer = node, source.parent(node)
    while isinstance(outer, (ast.Attribute, ast.Subscript)) and outer.value is inner:
        if isinstance(outer, ast.Subscript):
            return False
        inner, outer = outer, source.parent(outer)  # type: ignore[assignment]
    return True


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}

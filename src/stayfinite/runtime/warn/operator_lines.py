"""The line of an operator, read from the source: the only place in the code that trains where it is written.

A forward could be watched instead, but that would be felt in the user's process. Where an operator is written more than
once, or in a library, no line is named.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType

from torch import nn

from ...locate.frames import Frame, is_user_file

__all__ = ["codes_of", "line_of"]

_CALLS = {"pow": ("pow", "square", "float_power"), "div": ("div", "divide", "true_divide")}
_SIGNS: dict[str, type[ast.operator]] = {"pow": ast.Pow, "div": ast.Div, "reciprocal": ast.Div}
_NO_TENSORS = ("math", "cmath", "np", "numpy")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def codes_of(modules: Iterable[nn.Module], others: Iterable[CodeType | None]) -> set[CodeType]:
    """The code of the user's own forwards, and other code of theirs that runs in each step."""
    forwards = {getattr(m.forward, "__code__", None) for m in modules}
    return {c for c in (*forwards, *others) if c is not None and is_user_file(c.co_filename)}


def line_of(op: str, codes: Iterable[CodeType]) -> Frame | None:
    """The only line with this operator in these functions; if they have none, the only one in their files."""
    codes = list(codes)
    within, anywhere = set(), set()
    for file in {c.co_filename for c in codes}:
        firsts = {c.co_firstlineno for c in codes if c.co_filename == file}
        has_top = any(c.co_name == "<module>" for c in codes if c.co_filename == file)
        for line, function, lines in _written(op, file):
            frame = Frame(file, line, function)
            anywhere.add(frame)
            if firsts & lines or (has_top and not lines):
                within.add(frame)
    found = within or anywhere
    return found.pop() if len(found) == 1 else None


@functools.lru_cache(maxsize=64)
def _written(op: str, file: str) -> tuple[tuple[int, str, frozenset[int]], ...]:
    """(line, name of the function, first lines of the functions around it) of each place with this operator."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_places(op, tree, "<module>", frozenset()))


def _places(
    op: str, node: ast.AST, name: str, lines: frozenset[int]
) -> Iterator[tuple[int, str, frozenset[int]]]:
    for child in ast.iter_child_nodes(node):
        inner, its_name = lines, name
        if isinstance(child, _Function):
            decorators = getattr(child, "decorator_list", ())
            inner = lines | {child.lineno, *(d.lineno for d in decorators)}
            its_name = getattr(child, "name", "<lambda>")
        if _is_written_as(op, child):
            yield child.lineno, its_name, inner  # type: ignore[attr-defined]
        yield from _places(op, child, its_name, inner)


def _is_written_as(op: str, node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _SIGNS.get(op, ()))
    if not isinstance(node, ast.Call):
        return False
    home = getattr(node.func, "value", None)
    if isinstance(home, ast.Name) and home.id in _NO_TENSORS:
        return False
    called = str(getattr(node.func, "attr", getattr(node.func, "id", ""))).removesuffix("_")
    return called in _CALLS.get(op, (op,))

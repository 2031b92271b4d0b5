"""Compiles statements so that tracebacks still show the user's file, line and function."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import operator
import types
from collections.abc import Iterable
from typing import Any

from .source import FunctionSource

__all__ = ["compile_block", "compile_function", "compile_module"]

_OUTER = "__stayfinite_outer__"


def compile_module(body: list[ast.stmt], original: types.CodeType) -> types.CodeType:
    """Statements at the level of a script."""
    tree = ast.fix_missing_locations(ast.Module(body, []))
    code: types.CodeType = compile(
        tree, original.co_filename, "exec", _flags(original), dont_inherit=True
    )
    return code


def _flags(original: types.CodeType) -> int:
    """What the file imports from `__future__`."""
    known: list[int] = [
        getattr(__future__, name).compiler_flag for name in __future__.all_feature_names
    ]
    return original.co_flags & functools.reduce(operator.or_, known)


def compile_function(
    source: FunctionSource, body: list[ast.stmt], original: types.CodeType
) -> types.CodeType:
    """The function with another body; the same arguments and closure variables."""
    node = source.node
    assert not isinstance(node, ast.Lambda)
    new = copy.copy(node)
    new.body = body or [ast.copy_location(ast.Pass(), node)]
    new.decorator_list = []
    code = _inner(new, original.co_freevars, original)
    return code.replace(co_firstlineno=original.co_firstlineno)


def compile_block(
    body: list[ast.stmt], arguments: list[str], original: types.CodeType
) -> types.CodeType:
    """Statements from inside a function, as a function of the variables; it returns its variables."""
    place = body[-1]
    call = ast.Call(ast.Name("locals", ast.Load()), [], [])
    end = ast.fix_missing_locations(ast.copy_location(ast.Return(call), place))
    names = ast.arguments([], [ast.arg(a) for a in arguments], None, [], [], None, [])
    function = ast.FunctionDef(original.co_name, names, [*body, end], [], None, None)
    function.type_params = []  # type: ignore[attr-defined, unused-ignore]
    function.lineno, function.col_offset = original.co_firstlineno, 0
    function.end_lineno, function.end_col_offset = place.end_lineno, place.end_col_offset
    cells = ["__class__"] if "__class__" in original.co_freevars else []
    return _inner(function, cells, original)


def _inner(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    cells: Iterable[str],
    original: types.CodeType,
) -> types.CodeType:
    """A function around it makes the closure variables known to the compiler; it is never run."""
    names = ast.arguments([], [ast.arg(c) for c in cells], None, [], [], None, [])
    outer = ast.FunctionDef(_OUTER, names, [function], [], None, None)
    outer.type_params = []  # type: ignore[attr-defined, unused-ignore]
    outer = ast.fix_missing_locations(ast.copy_location(outer, function))
    outer.lineno = min(n.lineno for n in ast.walk(function) if isinstance(n, ast.stmt))
    tree = ast.Module([outer], [])
    code = compile(tree, original.co_filename, "exec", _flags(original), dont_inherit=True)
    wrapping = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    found = next(
        c for c in wrapping.co_consts
        if isinstance(c, types.CodeType) and c.co_name == function.name
    )  # fmt: skip
    new: dict[str, Any] = {"co_name": original.co_name}
    if hasattr(found, "co_qualname"):  # from Python 3.11 on
        new["co_qualname"] = getattr(original, "co_qualname", original.co_name)
    return found.replace(**new)

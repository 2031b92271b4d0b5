"""Finds the call of a function and the arguments it was given."""

from __future__ import annotations

import ast
import types
from typing import Any

from torch import nn

from .access import Reader
from .home import calls_at
from .judge import Judge
from .scene import Scene
from .source import current_code
from .values import Env

__all__ = ["ARGUMENT", "argument_expressions", "assignments", "plain_values"]

ARGUMENT = "__stayfinite_argument_"


def argument_expressions(
    callee: Scene, caller: Scene, env: Env, judge: Judge
) -> dict[str, ast.expr]:
    """The arguments of the running call, by parameter name."""
    reader = Reader(env, judge)
    for call in calls_at(caller):
        target = reader.value(call.func).obj
        is_bound = isinstance(target, (types.MethodType, nn.Module))
        if _code(target) is current_code(callee.code):
            return _matched(call, callee.code, is_bound)
    return {}


def plain_values(expressions: dict[str, ast.expr], env: Env, judge: Judge) -> dict[str, Any]:
    """The values of arguments that are names, attributes or constant entries."""
    found = {}
    for name, node in expressions.items():
        value = Reader(env, judge).value(node)
        if env.path(node) is not None and value.is_known:
            found[name] = value.obj
    return found


def assignments(expressions: dict[str, ast.expr]) -> list[ast.stmt]:
    """Statements that compute the arguments, at the place of the call."""
    found: list[ast.stmt] = []
    for name, node in expressions.items():
        target = ast.Name(ARGUMENT + name, ast.Store())
        statement = ast.copy_location(ast.Assign([target], node), node)
        found.append(ast.fix_missing_locations(statement))
    return found


def _code(target: Any) -> types.CodeType | None:
    if isinstance(target, nn.Module):
        target = type(target).forward
    func = target.__func__ if isinstance(target, types.MethodType) else target
    while isinstance(func, types.FunctionType) and "__wrapped__" in func.__dict__:
        func = func.__dict__["__wrapped__"]
    return current_code(func.__code__) if isinstance(func, types.FunctionType) else None


def _matched(call: ast.Call, code: types.CodeType, is_bound: bool) -> dict[str, ast.expr]:
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    found: dict[str, ast.expr] = {}
    for name, node in zip(names[is_bound : code.co_argcount], call.args):
        if isinstance(node, ast.Starred):
            break
        found[name] = node
    found.update((k.arg, k.value) for k in call.keywords if k.arg is not None and k.arg in names)
    return found

"""`where` discards a value but not its derivative."""

from __future__ import annotations

import ast

from .. import values as v
from ..context import Context, Hit
from ..names import says_safe
from ..operation import Operation, names_in
from ..values import Value
from .registry import on

_GUARDS = {"clamp", "clamp_min", "where", "clip", "maximum", "masked_fill"}
_SINGULAR = {
    "log",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "acos",
    "asin",
    "atanh",
    "logit",
    "reciprocal",
    "exp",
    "expm1",
    "sinh",
    "cosh",
}


@on("select")
def singular_before_selection(op: Operation, ctx: Context) -> None:
    """`(a / n)[n > 0]`: the selection discards the value, not its derivative."""
    if not isinstance(op.node, ast.Subscript):
        return  # a method that is called `select`
    value = op.args[0]
    if not ctx.is_grad or value.node is None or value.has(v.NOGRAD):
        return
    tested = set(names_in(op.nodes[1])) - {"torch", "self"}
    for singular, operand in _singular(op.nodes[0], value):
        if set(names_in(operand)) & tested and not _is_harmless(operand, value):
            ctx.report(
                "SF124",
                singular,
                "the selection discards the value, but in the backward 0 * inf is NaN",
                default=False,
            )
            return


@on("nan_to_num")
def singular_before_repair(op: Operation, ctx: Context) -> None:
    """`nan_to_num(a / b)` repairs the value, not its derivative."""
    value = op.first
    if not ctx.is_grad or not op.nodes or value.has(v.NOGRAD | v.SAFE | v.NP | v.PY):
        return
    for singular, operand in _singular(op.nodes[0], value):
        is_number = isinstance(operand, (ast.Constant, ast.Call))
        if isinstance(singular, ast.BinOp) and not is_number and not _is_harmless(operand, value):
            message = "nan_to_num repairs the value, but in the backward 0 * inf is NaN"
            ctx.hits.append(Hit("SF124", singular, message, is_default=False))
            return


@on("where")
def singular_branch(op: Operation, ctx: Context) -> None:
    parts = _parts(op)
    if parts is None or not ctx.is_grad:
        return
    condition, branches = parts
    tested = set(names_in(condition)) - {"torch", "self"}
    for node, value in branches:
        for singular, operand in _singular(node, value):
            if set(names_in(operand)) & tested and not _is_harmless(operand, value):
                ctx.report(
                    "SF124",
                    singular,
                    "`where` discards the value, but in the backward 0 * inf is NaN",
                    default=ctx.is_differentiated and not value.has(v.NOGRAD),
                )
                return


def _parts(op: Operation) -> tuple[ast.expr, tuple[tuple[ast.expr, Value], ...]] | None:
    """The condition and both branches, for `torch.where(c, a, b)` and for `a.where(c, b)`."""
    if len(op.nodes) < 3:
        return None
    first, second = (0, 1) if op.home else (1, 0)
    branches = ((op.nodes[second], op.args[second]), (op.nodes[2], op.args[2]))
    return op.nodes[first], branches


def _singular(node: ast.expr, value: Value) -> list[tuple[ast.expr, ast.expr]]:
    """Operations with a pole in a branch, written there or assigned to a variable before."""
    found: list[tuple[ast.expr, ast.expr]] = []
    whole = value.node if isinstance(node, ast.Name) and value.node is not None else node
    for child in ast.walk(whole):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            operand = child.args[0] if child.args else child.func.value
            if child.func.attr in _SINGULAR and not _is_decay(child.func.attr, operand):
                found.append((child, operand))
            elif child.func.attr in ("div", "divide", "true_divide") and child.args:
                found.append((child, child.args[-1]))
        elif isinstance(child, ast.BinOp) and isinstance(child.op, ast.Div):
            found.append((child, child.right))
    return found


def _is_decay(name: str, operand: ast.expr) -> bool:
    """`exp(-x)` in the branch of large x."""
    while isinstance(operand, ast.BinOp) and isinstance(operand.op, (ast.Mult, ast.Div)):
        operand = operand.left
    is_minus = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.USub)
    return name == "exp" and is_minus


def _is_harmless(operand: ast.expr, value: Value) -> bool:
    if value.has(v.SAFE | v.PY | v.NP | v.NOGRAD):
        return True
    if any(says_safe(name) for name in names_in(operand)):
        return True
    for child in ast.walk(operand):
        if isinstance(child, ast.Attribute) and child.attr in _GUARDS:
            return True
        if isinstance(child, ast.BinOp) and isinstance(child.op, ast.Add):
            return True
    return False

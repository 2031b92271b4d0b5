"""The rate of a training without a torch optimizer: what the gradients are multiplied by where weights are moved."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...locate.frames import Frame
from .setting_lines import assignment_before, functions_of_file, users_files

__all__ = ["own_rate"]

_IN_PLACE = ("sub_", "add_", "copy_")


def own_rate(files: Iterable[str | None]) -> tuple[Frame, str] | None:
    """Where that number is set, and what stands there; None if several lines move weights by different ones."""
    found = {
        (line, what)
        for file in users_files(files)
        for function, statements in functions_of_file(file)
        for s in statements
        if (factor := _factor(s)) is not None
        for line, what in [_where_set(file, function, factor)]
    }
    return found.pop() if len(found) == 1 else None


def _where_set(file: str, function: str, factor: ast.expr) -> tuple[Frame, str]:
    if isinstance(factor, ast.Name):
        for scope in dict.fromkeys((function, "<module>")):
            made = assignment_before(file, scope, factor.id, factor.lineno)
            if made is not None:
                return made[0], "the learning rate is set here"
    return Frame(file, factor.lineno, function), "the weights are moved here"


def _factor(s: ast.stmt) -> ast.expr | None:
    """`lr` of `w -= lr * w.grad`, `w = w - lr * grad`, `w.sub_(lr * g)` and `w.add_(g, alpha=-lr)`."""
    if isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Sub):
        return _of_product(s.value)
    if isinstance(s, ast.Assign):
        return _of_difference(s.value)
    call = s.value if isinstance(s, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr not in _IN_PLACE or not call.args:
        return None
    alpha = next((k.value for k in call.keywords if k.arg == "alpha"), None)
    if alpha is not None:
        if isinstance(alpha, ast.UnaryOp):
            alpha = alpha.operand
        return alpha if _is_gradient(call.args[0]) else None
    return _of_product(call.args[0]) or _of_difference(call.args[0])


def _of_difference(value: ast.expr) -> ast.expr | None:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Sub):
        return None
    return _of_product(value.right)


def _of_product(value: ast.expr) -> ast.expr | None:
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return None
    for one, other in ((value.left, value.right), (value.right, value.left)):
        if _is_gradient(one) and isinstance(other, (ast.Name, ast.Attribute, ast.Constant)):
            return other
    return None


def _is_gradient(node: ast.expr) -> bool:
    names = [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    return any("grad" in n.lower() or n in ("g", "dw", "db") for n in names)

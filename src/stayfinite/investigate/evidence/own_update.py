"""The updates of a training without a torch optimizer, as they stand in the source: their rate, and what they divide by."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...diagnose.evidence import Data
from ...locate.frames import Frame
from ...locate.slice import Origin
from ...records import Incident
from ..investigation import Investigation
from .script_files import own_files
from .setting_lines import assignment_before, functions_of_file, users_files

__all__ = ["own_rate", "own_update"]

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


def own_update(
    investigation: Investigation, incident: Incident, origin: Origin | None
) -> Data | None:
    """The script's own line that divides where it moves the weights, if that has made them bad."""
    source = origin.source if origin is not None and origin.birth is None else None
    if incident.event.phase != "optimizer" or source is None or source.kind != "parameter":
        return None
    line = _own_quotient(own_files(investigation))
    if line is None:
        return None
    return Data(
        origin="pipeline", file=line.file, line=line.line, source=line.source,
        function=line.function, op="aten.div",
    )  # fmt: skip


def _own_quotient(files: Iterable[str | None]) -> Frame | None:
    """The only line that moves weights by something divided by a tensor: `p -= lr * m / v.sqrt()`."""
    found = {
        Frame(file, s.lineno, function)
        for file in users_files(files)
        for function, statements in functions_of_file(file)
        for s in statements
        if (moved := _moved_by(s)) is not None and _divides(moved)
    }
    return found.pop() if len(found) == 1 else None


def _moved_by(s: ast.stmt) -> ast.expr | None:
    """What is taken off in `p -= x`, `p = p - x`, `p.sub_(x)`; the call itself in `p.addcdiv_(m, v)`."""
    if isinstance(s, ast.AugAssign) and isinstance(s.op, (ast.Sub, ast.Add)):
        return s.value
    value = s.value if isinstance(s, (ast.Assign, ast.Expr)) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.args:
        name = value.func.attr
        return value if name == "addcdiv_" else value.args[0] if name in _IN_PLACE else None
    if isinstance(s, ast.Assign) and isinstance(value, ast.BinOp):
        is_from_itself = ast.unparse(value.left) == ast.unparse(s.targets[0])
        return value.right if is_from_itself else None
    return None


def _divides(value: ast.expr) -> bool:
    """Whether something is divided by a root or a norm, with nothing that keeps it from zero."""
    if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "addcdiv_":
        return len(value.args) > 1 and _is_bare_root(value.args[-1])
    divisors = [
        n.right for n in ast.walk(value) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div)
    ]
    return any(_is_bare_root(d) for d in divisors)


def _is_bare_root(node: ast.expr) -> bool:
    """`v.sqrt()`, `torch.sqrt(v)`, `v ** 0.5`, `g.norm()`: no sum with an epsilon, no clamp around it."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Pow)
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", "") in ("sqrt", "norm", "sqrt_", "rsqrt", "vector_norm")


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

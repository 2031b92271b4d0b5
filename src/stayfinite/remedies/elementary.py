"""Replaces functions of torch that are written by hand with an exponential that overflows."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .matching import call, functional, grouped, name_of
from .source import Source

__all__: list[str] = []


def _exponent(source: Source, node: ast.expr) -> ast.expr | None:
    """`x` in `exp(x)`, even if the exponential has a name."""
    written = source.definition(node)
    found = call(written, "exp")
    if found is None or found[2] or found[3]:
        return None
    return found[1] if written is node or _is_cheap(found[1]) else None


def _is_cheap(node: ast.expr) -> bool:
    """Whether an expression can be moved to another line, because it has no calls."""
    return not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await)) for n in ast.walk(node))


def _one_plus_exp(source: Source, node: ast.expr) -> ast.expr | None:
    """`x` in `1 + exp(x)`."""
    written = source.definition(node)
    if not isinstance(written, ast.BinOp) or not isinstance(written.op, ast.Add):
        return None
    for side, other in ((written.left, written.right), (written.right, written.left)):
        x = _exponent(source, other) if _is_one(side) else None
        if x is not None and (written is node or _is_cheap(x)):
            return x
    return None


def _negated(source: Source, node: ast.expr) -> str:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return source.text_of(node.operand)
    return f"-{grouped(source, node)}"


def _is_negative_of(a: ast.expr, b: ast.expr) -> bool:
    if isinstance(b, ast.UnaryOp) and isinstance(b.op, ast.USub):
        return ast.dump(b.operand) == ast.dump(a)
    return False


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


@pattern(
    "softplus",
    "use softplus for log(1 + exp(x))",
    "the exponential overflows at 88; for a large x the logarithm is x itself, with its gradient",
)
def softplus(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    log, home = call(node, "log", "log1p"), functional(source)
    if log is None or home is None or log[2] or log[3]:
        return None
    take = _exponent if log[0] == "log1p" else _one_plus_exp
    x = take(source, log[1])
    if x is None:
        return None
    return [Edit(*source.span(node), f"{home}.softplus({source.text_of(x)})")]


@pattern(
    "logaddexp",
    "use torch.logaddexp for log(exp(a) + exp(b))",
    "it takes the larger of the two out first, so that no exponential overflows",
)
def logaddexp(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    log, torch = call(node, "log"), name_of(source, "torch")
    if log is None or torch is None or log[2]:
        return None
    total = source.definition(log[1])
    if not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.Add):
        return None
    a, b = _exponent(source, total.left), _exponent(source, total.right)
    if a is None or b is None or not (total is log[1] or (_is_cheap(a) and _is_cheap(b))):
        return None
    return [
        Edit(*source.span(node), f"{torch}.logaddexp({source.text_of(a)}, {source.text_of(b)})")
    ]


@pattern(
    "sigmoid",
    "use torch.sigmoid",
    "1 / (1 + exp(-x)) is 0 far below 0, but the derivative of its exponential there is 0 * inf",
)
def sigmoid(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    if torch is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    below = _one_plus_exp(source, node.right)
    if below is None:
        return None
    if _is_one(node.left):
        return [Edit(*source.span(node), f"{torch}.sigmoid({_negated(source, below)})")]
    above = _exponent(source, node.left)
    if above is None or ast.dump(above) != ast.dump(below):
        return None
    return [Edit(*source.span(node), f"{torch}.sigmoid({source.text_of(above)})")]


@pattern(
    "tanh",
    "use torch.tanh",
    "(exp(x) - exp(-x)) / (exp(x) + exp(-x)) is inf / inf where the exponential overflows",
)
def tanh(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    if torch is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    above, below = source.definition(node.left), source.definition(node.right)
    if not isinstance(above, ast.BinOp) or not isinstance(above.op, ast.Sub):
        return None
    if not isinstance(below, ast.BinOp) or not isinstance(below.op, ast.Add):
        return None
    parts = [_exponent(source, p) for p in (above.left, above.right, below.left, below.right)]
    a, b, *rest = parts
    if a is None or b is None or not _is_negative_of(a, b) or not _is_cheap(a):
        return None
    if {ast.dump(r) for r in rest if r is not None} != {ast.dump(a), ast.dump(b)}:
        return None
    return [Edit(*source.span(node), f"{torch}.tanh({source.text_of(a)})")]


@pattern(
    "log_of_magnitude",
    "take the logarithm of the magnitude: a scale that enters as a square has no sign",
    "below zero a floor would leave a constant without a gradient; the magnitude keeps both, and positive values "
    "give the same",
)
def log_of_magnitude(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    """`log(s)` beside `s**2`: the scale of a distribution that a step of the optimizer has taken below zero."""
    found = call(node, "log", "log2", "log10")
    if found is None or not isinstance(found[1], (ast.Name, ast.Attribute, ast.Subscript)):
        return None
    wanted = ast.dump(found[1])
    if not any(_is_square_of(n, wanted) for n in ast.walk(source.scope(node))):
        return None
    end = source.span(found[1])[1]
    return [Edit(end, end, ".abs()")]


def _is_square_of(node: ast.AST, wanted: str) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return ast.dump(node.left) == wanted and _is_two(node.right)
    found = call(node, "pow", "square")
    if found is None or ast.dump(found[1]) != wanted:
        return False
    return found[0] == "square" or (len(found[2]) == 1 and _is_two(found[2][0]))


def _is_two(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 2

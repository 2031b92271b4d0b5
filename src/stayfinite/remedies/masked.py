"""Puts a mask before an operation that is infinite at masked positions: the double where."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .catalogue import pattern
from .edits import Edit
from .floors import divisor_of
from .matching import call, grouped, name_of
from .source import Source, binds

__all__: list[str] = []

_HARMLESS = {
    **dict.fromkeys(
        ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma"), "1"
    ),
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh", "log1p"), "0"),
    **dict.fromkeys(
        ("acos", "asin", "arccos", "arcsin", "atanh", "arctanh", "erfinv", "logit"), "0.5"
    ),
    **dict.fromkeys(("acosh", "arccosh"), "2"),
    "pow": "1",
    "div": "1",
}
"""Values at which each function and its derivative are finite."""


@pattern(
    "mask_first",
    "mask before the operation as well (the double where)",
    "what is discarded then never sees the bad argument, and its gradient is 0; what is kept stays as it is",
)
def mask_first(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    torch = name_of(source, "torch")
    found = _discarded(source, node)
    if torch is None or found is None:
        return None
    operand, keep = found
    written = source.definition(operand)
    inner = _argument(source, written)
    if inner is None or not _is_known_at(source, keep[1], written, node):
        return None
    argument, value = inner
    text = f"{torch}.where({keep[0]}, {source.text_of(argument)}, {value})"
    is_argument = isinstance(written, ast.Call) and any(argument is a for a in written.args)
    start, end = _with_parentheses(source, argument, is_argument)
    return [Edit(start, end, text)]


def _discarded(source: Source, node: ast.AST) -> tuple[ast.expr, tuple[str, ast.expr]] | None:
    """The branch that a mask partly discards, and the condition that keeps it."""
    where = call(node, "where")
    if where is not None and isinstance(node, ast.Call) and len(node.args) == 3:
        condition, one, other = node.args
        if _argument(source, source.definition(one)) is not None:
            return one, (source.text_of(condition), condition)
        return other, (f"~{grouped(source, condition)}", condition)
    filled = call(node, "masked_fill")
    if filled is not None and len(filled[2]) == 2:
        mask = filled[2][0]
        if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
            return filled[1], (source.text_of(mask.operand), mask)
        return filled[1], (f"~{grouped(source, mask)}", mask)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if _argument(source, source.definition(one)) is not None and isinstance(
                other, ast.Name
            ):
                return one, (f"{other.id} != 0", other)
    return None


def _argument(source: Source, node: ast.expr) -> tuple[ast.expr, str] | None:
    """The operand of an operation that can be infinite, and a safe value for it."""
    kernel = source.kernel.lstrip("_").partition("_tensor")[0]
    if kernel.startswith("pow"):
        kernel = "pow"
    value = _HARMLESS.get(kernel)
    if value is None:
        return None
    if isinstance(node, ast.BinOp):
        if kernel == "pow" and isinstance(node.op, ast.Pow):
            return node.left, value
        divisor = divisor_of(node) if kernel in ("div", "reciprocal") else None
        return (divisor, "1") if divisor is not None else None
    found = call(node, kernel)
    if found is None:
        return None
    if kernel == "div":
        return (found[2][0], value) if found[2] else None
    return found[1], value


def _is_known_at(source: Source, mask: ast.expr, written: ast.expr, node: ast.AST) -> bool:
    """Whether the mask is defined before the operation and unchanged."""
    statement, own = source.statement(written), source.statement(node)
    if statement is own:
        return True
    parts = {n.id for n in ast.walk(mask) if isinstance(n, ast.Name)}
    if any(isinstance(n, ast.Call) for n in ast.walk(mask)):
        return False
    first, last = written.lineno, getattr(node, "lineno", 0)
    return not any(
        first <= getattr(n, "lineno", 0) < last and parts & binds(n)
        for n in ast.walk(source.scope(node))
    )


def _with_parentheses(source: Source, node: ast.expr, is_argument: bool) -> tuple[int, int]:
    """The span of an expression, including the parentheses of its group."""
    start, end = source.span(node)
    if is_argument or source.text[start - 1 : start] != "(" or source.text[end : end + 1] != ")":
        return start, end
    before = source.text[: start - 1][-1:]
    return (start, end) if before.isalnum() or before in "_)]" else (start - 1, end + 1)

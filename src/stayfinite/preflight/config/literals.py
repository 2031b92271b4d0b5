"""Parses numbers as people write them in configs (`1e-4`, `2.**16`, `8/255`) without running code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

__all__ = ["arithmetic", "number_in"]

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_PLAIN = re.compile(r"[+-]?[\d.]+([eE][+-]?\d+)?")
_FORMULA = re.compile(r"[\d.eE+() -]*(\*\*|[*/])[\d.eE+()*/ -]*")
_LARGEST_POWER = 1024


def arithmetic(node: ast.AST) -> int | float | None:
    """The value of an expression of numbers alone; None for anything else.

    >>> arithmetic(ast.parse("2. ** 16", mode="eval").body)
    65536.0
    >>> arithmetic(ast.parse("f(2)", mode="eval").body) is None
    True
    """
    if isinstance(node, ast.Constant):
        is_number = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        return node.value if is_number else None  # type: ignore[return-value]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = arithmetic(node.operand)
        return None if inner is None else -inner if isinstance(node.op, ast.USub) else inner
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = arithmetic(node.left), arithmetic(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Pow) and (abs(right) > _LARGEST_POWER or abs(left) > 1e6):
        return None  # `9 ** 9 ** 9` is no setting
    try:
        value = _OPERATORS[type(node.op)](left, right)
    except (ArithmeticError, ValueError):
        return None
    return value if isinstance(value, (int, float)) else None


def number_in(value: Any) -> Any:
    """YAML reads `1e-4` and `2.**16` as text; they are meant as numbers.

    >>> number_in("1e-4"), number_in("2.**16"), number_in("8/255"), number_in("1e-4 m")
    (0.0001, 65536.0, 0.03137254901960784, '1e-4 m')
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if _PLAIN.fullmatch(text):
        try:
            return float(text)
        except ValueError:
            return value
    if not _FORMULA.fullmatch(text):
        return value
    try:
        found = arithmetic(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return value
    return value if found is None else found

"""One operation, however it is written: `torch.log(x)`, `x.log()`, `a / b`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .names import is_epsilon
from .values import UNKNOWN, Value

__all__ = ["CANONICAL", "Operation", "is_decay", "is_same", "is_small", "names_in"]

CANONICAL = {
    "arccos": "acos",
    "arcsin": "asin",
    "arctanh": "atanh",
    "clip": "clamp",
    "clip_": "clamp",
    "clamp_min_": "clamp_min",
    "divide": "div",
    "true_divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "vector_norm": "norm",
    "expit": "sigmoid",
    "absolute": "abs",
    "hardtanh": "clamp",
    "swapaxes": "transpose",
    "log_": "log",
    "exp_": "exp",
    "sqrt_": "sqrt",
    "div_": "div",
    "mul_": "mul",
    "add_": "add",
    "sub_": "sub",
    "pow_": "pow",
    "abs_": "abs",
    "relu_": "relu",
    "clamp_": "clamp",
    "masked_fill_": "masked_fill",
    "arctan2": "atan2",
    "fill_diagonal_": "fill_diagonal",
    "scatter_add_": "scatter_add",
    "index_add_": "index_add",
    "scatter_sum": "segment_sum",
    "segment_sum": "segment_sum",
}
"""Other spellings of the same operation."""


_SIZES = {"square", "pow", "norm", "abs", "cdist", "dist", "relu", "softplus", "sum_of_squares"}


class Operation:
    """A call or an operator with its operands, the same for functions and methods."""

    __slots__ = ("args", "home", "keywords", "name", "node", "nodes", "values")

    def __init__(
        self,
        name: str,
        node: ast.expr,
        nodes: list[ast.expr],
        args: list[Value],
        keywords: dict[str, ast.expr] | None = None,
        values: dict[str, Value] | None = None,
        home: str = "",
    ) -> None:
        self.name = name
        self.node = node
        self.nodes = nodes
        self.args = args
        self.keywords = keywords or {}
        self.values = values or {}
        self.home = home
        """The namespace it was called from; empty for a method and for an operator."""

    @property
    def first(self) -> Value:
        return self.args[0] if self.args else UNKNOWN

    def value(self, index: int, *names: str) -> Value | None:
        """The operand at a position or under one of these names."""
        if 0 <= index < len(self.args):
            return self.args[index]
        return next((self.values[n] for n in names if n in self.values), None)

    def expression(self, index: int, *names: str) -> ast.expr | None:
        """The source of that operand."""
        if 0 <= index < len(self.nodes):
            return self.nodes[index]
        return next((self.keywords[n] for n in names if n in self.keywords), None)

    def number(self, index: int, *names: str) -> float | None:
        """That operand as a number, if it is written as one."""
        found = self.value(index, *names)
        return None if found is None else found.number


def names_in(node: ast.AST) -> Iterator[str]:
    """The variables in an expression.

    >>> sorted(names_in(ast.parse("mask.sum(dim) + n", mode="eval")))
    ['dim', 'mask', 'n']
    """
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id


def is_same(a: ast.expr, b: ast.expr) -> bool:
    """Whether two expressions are written alike."""
    if type(a) is not type(b):
        return False
    if isinstance(a, ast.Name) and isinstance(b, ast.Name):
        return a.id == b.id
    return not isinstance(a, ast.Constant) and ast.dump(a) == ast.dump(b)


def is_small(node: ast.expr, value: Value) -> bool:
    """Whether an operand is an epsilon that keeps a denominator from 0."""
    if value.number is not None:
        return value.number > 0
    if isinstance(node, ast.Name):
        return is_epsilon(node.id)
    if isinstance(node, ast.Attribute):
        return is_epsilon(node.attr)
    if isinstance(node, (ast.BinOp, ast.Call, ast.Subscript)):
        return any(is_epsilon(name) for name in _words(node))
    return False


def is_decay(node: ast.expr) -> bool:
    """Whether this is minus a square, a distance or a size, so that its exponential is at most 1.

    >>> is_decay(ast.parse("-(x - m) ** 2 / s", mode="eval").body)
    True
    >>> is_decay(ast.parse("-energy / t", mode="eval").body)
    False
    """
    head: ast.expr = node
    while isinstance(head, ast.BinOp) and isinstance(head.op, (ast.Mult, ast.Div)):
        head = head.left
    if not (isinstance(head, ast.UnaryOp) and isinstance(head.op, ast.USub)):
        return False
    return any(
        isinstance(n, ast.Pow) or (isinstance(n, ast.Attribute) and n.attr in _SIZES)
        for n in ast.walk(node)
    )


def _words(node: ast.expr) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr

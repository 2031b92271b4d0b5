"""The safe form of a line of source, where a mechanical change is right."""

from __future__ import annotations

import ast
import textwrap

__all__ = ["SAFE", "safe_form"]

SAFE = {
    "log": "safe_log",
    "sqrt": "safe_sqrt",
    "exp": "safe_exp",
    "div": "safe_div",
    "pow": "safe_pow",
    "acos": "safe_acos",
    "asin": "safe_asin",
    "atanh": "safe_atanh",
    "norm": "safe_norm",
    "std": "safe_std",
    "var": "safe_var",
}
"""Operators with a replacement in `stayfinite.numerics`."""

_ALIASES = {
    "arccos": "acos",
    "arcsin": "asin",
    "arctanh": "atanh",
    "vector_norm": "norm",
    "divide": "div",
    "true_divide": "div",
}


class _Rewriter(ast.NodeTransformer):
    def __init__(self, op: str) -> None:
        self.op = op
        self.safe = SAFE[op]
        self.count = 0

    def _call(self, *args: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
        self.count += 1
        return ast.Call(ast.Name(self.safe, ast.Load()), list(args), keywords or [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        name = _ALIASES.get(node.func.attr, node.func.attr)
        if name != self.op:
            return node
        home = node.func.value
        if _is_namespace(home):
            return self._call(*node.args, keywords=node.keywords)
        return self._call(home, *node.args, keywords=node.keywords)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        kind = {"div": ast.Div, "pow": ast.Pow}.get(self.op)
        if kind is not None and isinstance(node.op, kind):
            return self._call(node.left, node.right)
        return node


def _is_namespace(home: ast.expr) -> bool:
    """`torch.log(x)`, `torch.linalg.norm(x)` against `x.log()`."""
    while isinstance(home, ast.Attribute):
        home = home.value
    return isinstance(home, ast.Name) and home.id in ("torch", "th", "F")


def safe_form(source: str | None, op: str) -> str | None:
    """The line with every use of `op` replaced; None where the line cannot be read by itself.

    >>> safe_form("loss = -(torch.log(p) * w).mean()", "log")
    'loss = -(safe_log(p) * w).mean()'
    >>> safe_form("return total / count", "div")
    'return safe_div(total, count)'
    >>> safe_form("x = f(", "log")
    """
    if not source or op not in SAFE:
        return None
    text = textwrap.dedent(source).strip()
    wrapped = text if not text.startswith("return") else f"def f():\n {text}"
    try:
        tree = ast.parse(wrapped)
    except SyntaxError:
        return None
    rewriter = _Rewriter(op)
    tree = ast.fix_missing_locations(rewriter.visit(tree))
    if not rewriter.count:
        return None
    return ast.unparse(tree).removeprefix("def f():\n").strip()

"""The safe form of a line of source, where a mechanical change is right."""

from __future__ import annotations

import ast
import textwrap

__all__ = ["SAFE", "log_space_form", "safe_form"]

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
    return _rewritten(source, _Rewriter(op)) if op in SAFE else None


class _LogSpace(ast.NodeTransformer):
    """log(sigmoid(x)) and log(softmax(x)), with or without an epsilon, as one call each."""

    def __init__(self) -> None:
        self.count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        parts = _function(node)
        if parts is None or parts[0] != "log" or len(parts[1]) != 1:
            return node
        inner, is_rest = _without_one_minus(_without_epsilon(parts[1][0]))
        found = _function(inner)
        if not isinstance(inner, ast.Call) or found is None or not found[1]:
            return node
        name, (x, *rest) = found
        if name not in (("sigmoid",) if is_rest else ("sigmoid", "softmax")):
            return node
        self.count += 1
        log_name = "logsigmoid" if name == "sigmoid" else "log_softmax"
        call = ast.Attribute(ast.Name("F", ast.Load()), log_name, ast.Load())
        x = ast.UnaryOp(ast.USub(), x) if is_rest else x
        return ast.Call(call, [x, *rest], inner.keywords)


def _function(node: ast.AST) -> tuple[str, list[ast.expr]] | None:
    """Name and arguments of a call, whether written `torch.log(x)` or `x.log()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    home = [] if _is_namespace(node.func.value) else [node.func.value]
    return node.func.attr, [*home, *node.args]


def _without_epsilon(node: ast.expr) -> ast.expr:
    """`p` of `p + eps` and of `p.clamp(min=eps)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if _is_epsilon(other):
                return _without_epsilon(side)
    found = _function(node)
    if found is not None and found[0] in ("clamp", "clamp_min") and found[1]:
        return _without_epsilon(found[1][0])
    return node


def _is_epsilon(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float) and 0 < node.value < 1e-2
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return isinstance(name, str) and any(word in name.lower() for word in ("eps", "tiny"))


def _without_one_minus(node: ast.expr) -> tuple[ast.expr, bool]:
    """`p` of `1 - p`, and whether it was that."""
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 1
    ):
        return node.right, True
    return node, False


def log_space_form(source: str | None) -> str | None:
    """The line without the detour from log space through a probability; None where there is none.

    >>> log_space_form("loss = -torch.mean(torch.log(torch.sigmoid(score) + 1e-8))")
    'loss = -torch.mean(F.logsigmoid(score))'
    >>> log_space_form("return logits.softmax(-1).clamp(min=eps).log()")
    'return F.log_softmax(logits, -1)'
    >>> log_space_form("y = torch.log(x)")
    """
    return _rewritten(source, _LogSpace())


def _rewritten(source: str | None, rewriter: _Rewriter | _LogSpace) -> str | None:
    if not source:
        return None
    text = textwrap.dedent(source).strip()
    wrapped = text if not text.startswith("return") else f"def f():\n {text}"
    try:
        tree = ast.parse(wrapped)
    except SyntaxError:
        return None
    tree = ast.fix_missing_locations(rewriter.visit(tree))
    if not rewriter.count:
        return None
    return ast.unparse(tree).removeprefix("def f():\n").strip()

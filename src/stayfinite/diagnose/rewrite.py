"""The safe form of a line of source, where a mechanical change is right."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable

__all__ = ["SAFE", "holds", "log_space_form", "safe_form"]

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


_GROUPS = (ast.Attribute, ast.BinOp, ast.UnaryOp, ast.Assign, ast.Return)


class _Rewriter:
    """Rewrites a line as text: what is not changed stays as the user has written it."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        lines = self._text.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:i])) for i in range(len(lines))]
        self.count = 0

    def run(self) -> str:
        return self.text_of(ast.parse(self._text))

    def replaced(self, node: ast.AST) -> str | None:
        """The new text of this node; None where it stays."""
        raise NotImplementedError

    def text_of(self, node: ast.AST) -> str:
        return self._whole(node) or self._in_parts(node)

    def _whole(self, node: ast.AST) -> str | None:
        new = self.replaced(node)
        self.count += new is not None
        return new

    def _in_parts(self, node: ast.AST) -> str:
        start, end = self._span(node)
        pieces, at = [], start
        for child in sorted(_parts(node), key=lambda n: self._span(n)[0]):
            first, last = self._span(child)
            new = self._whole(child)
            if new is None:
                new = self._in_parts(child)
            elif isinstance(node, _GROUPS):
                first, last = self._without_parentheses(at, first, last)
            pieces += [self._text[at:first].decode(), new]
            at = last
        return "".join(pieces) + self._text[at:end].decode()

    def _without_parentheses(self, start: int, first: int, last: int) -> tuple[int, int]:
        """A call needs none round it."""
        while first > start and self._text[first - 1 : first] == b"(":
            if self._text[last : last + 1] != b")":
                break
            first, last = first - 1, last + 1
        return first, last

    def _span(self, node: ast.AST) -> tuple[int, int]:
        if not isinstance(node, (ast.expr, ast.stmt, ast.keyword)):
            return 0, len(self._text)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )


def _parts(node: ast.AST) -> list[ast.AST]:
    """What lies next below a node and has a place in the text."""
    if isinstance(node, ast.JoinedStr):
        return []
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        has_place = isinstance(child, (ast.expr, ast.stmt, ast.keyword))
        found += [child] if has_place else _parts(child)
    return found


class _Safe(_Rewriter):
    def __init__(self, text: str, op: str) -> None:
        super().__init__(text)
        self._op = op

    def replaced(self, node: ast.AST) -> str | None:
        kind = {"div": ast.Div, "pow": ast.Pow}.get(self._op)
        if isinstance(node, ast.BinOp) and kind is not None and isinstance(node.op, kind):
            return f"{SAFE[self._op]}({self.text_of(node.left)}, {self.text_of(node.right)})"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        if _ALIASES.get(node.func.attr, node.func.attr) != self._op:
            return None
        home = [] if _is_namespace(node.func.value) else [node.func.value]
        given = [self.text_of(a) for a in (*home, *node.args, *node.keywords)]
        return f"{SAFE[self._op]}({', '.join(given)})"


def _is_namespace(home: ast.expr) -> bool:
    """`torch.log(x)`, `torch.linalg.norm(x)` against `x.log()`."""
    while isinstance(home, ast.Attribute):
        home = home.value
    return isinstance(home, ast.Name) and home.id in ("torch", "th", "F")


def safe_form(source: str | None, op: str) -> str | None:
    """The line with every use of `op` replaced; None where the line cannot be read by itself.

    >>> safe_form("loss = -(torch.log(p) * w).mean()  # 1e-6", "log")
    'loss = -(safe_log(p) * w).mean()  # 1e-6'
    >>> safe_form("return total / (count+1e-6)", "div")
    'return safe_div(total, count+1e-6)'
    >>> safe_form("x = f(", "log")
    """
    return _rewritten(source, lambda text: _Safe(text, op)) if op in SAFE else None


def holds(source: str | None, op: str) -> bool:
    """Whether this line has a call of `op`, as a function, a method or an operator.

    >>> holds("y = x ** 1.5", "pow"), holds("loss = grad(u, x)", "pow"), holds("+ torch.log(", "log")
    (True, False, True)
    """
    if not source:
        return False
    names = [op, *(alias for alias, name in _ALIASES.items() if name == op)]
    signs = {"div": r"(?<!/)/(?!/)", "pow": r"\*\*"}
    patterns = [rf"\b{name}\s*\(" for name in names] + ([signs[op]] if op in signs else [])
    return any(re.search(pattern, source) for pattern in patterns)


class _LogSpace(_Rewriter):
    """log(sigmoid(x)) and log(softmax(x)), with or without an epsilon, as one call each."""

    def replaced(self, node: ast.AST) -> str | None:
        parts = _function(node)
        if parts is None or parts[0] != "log" or len(parts[1]) != 1:
            return None
        inner, is_rest = _without_one_minus(_without_epsilon(parts[1][0]))
        found = _function(inner)
        if not isinstance(inner, ast.Call) or found is None or not found[1]:
            return None
        name, (x, *rest) = found
        if name not in (("sigmoid",) if is_rest else ("sigmoid", "softmax")):
            return None
        first = self.text_of(x)
        if is_rest:
            is_simple = isinstance(x, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
            first = f"-{first}" if is_simple else f"-({first})"
        given = [first, *(self.text_of(a) for a in (*rest, *inner.keywords))]
        return f"F.{'logsigmoid' if name == 'sigmoid' else 'log_softmax'}({', '.join(given)})"


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
    return _rewritten(source, _LogSpace)


def _rewritten(source: str | None, make: Callable[[str], _Rewriter]) -> str | None:
    if not source:
        return None
    text = textwrap.dedent(source).strip()
    head = "def f():\n " if text.startswith("return") else ""
    rewriter = make(head + text)
    try:
        made = rewriter.run()
    except SyntaxError:
        return None
    return made.removeprefix(head).strip() if rewriter.count else None

"""Helpers of the patterns: calls in any spelling, and expressions that can be repeated."""

from __future__ import annotations

import ast

from ..parsing import dotted
from .edits import Edit
from .source import Source

__all__ = [
    "call",
    "clamped",
    "dotted",
    "floored",
    "functional",
    "hoisted",
    "is_simple",
    "rest_of_call",
    "some_tensor",
    "stands_alone",
    "twice",
]

_ROOTS = ("torch", "F", "nn", "th")


def is_namespace(node: ast.AST) -> bool:
    """Whether this is `torch`, `F` or `torch.nn.functional`, and not a tensor."""
    return dotted(node).partition(".")[0] in _ROOTS


def call(
    node: ast.AST, *names: str
) -> tuple[str, ast.expr, list[ast.expr], list[ast.keyword]] | None:
    """Name, operand, other arguments and keywords of `torch.log(x, ...)` or `x.log(...)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name = node.func.attr
    if names and name not in names:
        return None
    if not is_namespace(node.func.value):
        return name, node.func.value, node.args, node.keywords
    if not node.args or isinstance(node.args[0], ast.Starred):
        return None
    return name, node.args[0], node.args[1:], node.keywords


def rest_of_call(source: Source, args: list[ast.expr], keywords: list[ast.keyword]) -> str:
    """The other arguments as text."""
    return ", ".join(source.text_of(a) for a in (*args, *keywords))


def functional(source: Source) -> str | None:
    """The name of `torch.nn.functional` in this file; None if it imports neither."""
    return name_of(source, "torch.nn.functional") or (
        "torch.nn.functional" if name_of(source, "torch") == "torch" else None
    )


def name_of(source: Source, full: str) -> str | None:
    """The name under which a file imports a module at its top."""
    for node in source.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == full and (alias.asname or "." not in full):
                    return alias.asname or full
                if full == "torch" and alias.name.startswith("torch.") and not alias.asname:
                    return "torch"
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if f"{node.module}.{alias.name}" == full:
                    return alias.asname or alias.name
    return None


def is_simple(node: ast.AST) -> bool:
    """Whether an expression can be written twice: a name, an attribute, an index with constants."""
    if isinstance(node, ast.Subscript):
        return is_simple(node.value) and not any(
            isinstance(n, ast.Call) for n in ast.walk(node.slice)
        )
    return bool(dotted(node))


def some_tensor(source: Source, node: ast.expr) -> str | None:
    """A variable in an expression that has the dtype of the result; attributes may be plain numbers."""
    if isinstance(node, ast.Name):
        return None if node.id in _ROOTS or node.id == "self" else node.id
    if isinstance(node, ast.Attribute):
        return None
    if isinstance(node, ast.BinOp):
        left = None if isinstance(node.left, ast.Constant) else some_tensor(source, node.left)
        return some_tensor(source, node.right) if left is None or _is_number(left) else left
    if isinstance(node, ast.UnaryOp):
        return some_tensor(source, node.operand)
    if isinstance(node, ast.Subscript):
        return some_tensor(source, node.value)
    found = call(node)
    if found is None or found[0] in ("to", "float", "double", "half", "type"):
        return None
    return some_tensor(source, found[1])


def _is_number(name: str) -> bool:
    """Names that are hardly ever a tensor's."""
    return any(word in name.lower() for word in ("eps", "tiny", "smooth"))


def floored(source: Source, node: ast.expr, floor: str) -> list[Edit] | None:
    """The expression with the smallest number of its dtype as a floor: `x.clamp(min=torch.finfo(x.dtype).tiny)`."""
    limit = limit_of(source, node, floor)
    return None if limit is None else clamped(source, node, low=limit)


def clamped(
    source: Source, node: ast.expr, low: str | None = None, high: str | None = None
) -> list[Edit]:
    """The expression with limits: `x.clamp(min=low)`, `x.clamp(max=high)`, `x.clamp(low, high)`."""
    if low is not None and high is not None:
        return with_method(source, node, f".clamp({low}, {high})")
    return with_method(
        source, node, f".clamp(min={low})" if high is None else f".clamp(max={high})"
    )


def with_method(source: Source, node: ast.expr, text: str) -> list[Edit]:
    """Call a method on an expression, whose contents other edits can still change."""
    start, end = source.span(node)
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return [Edit(end, end, text)]
    if is_in_parentheses(source.text, start, end):
        return [Edit(end + 1, end + 1, text)]
    return [Edit(start, start, "("), Edit(end, end, f"){text}")]


def is_in_parentheses(text: str, start: int, end: int) -> bool:
    """The parentheses of a group, not those of a call."""
    if text[start - 1 : start] != "(" or text[end : end + 1] != ")":
        return False
    before = text[: start - 1][-1:]
    return not (before.isalnum() or before in ("_", ")", "]"))


_LIMITS = {
    "float16": {"tiny": "6.2e-05", "eps": "0.001"},
    "bfloat16": {"tiny": "1.2e-38", "eps": "0.008"},
    "float32": {"tiny": "1.2e-38", "eps": "1.2e-07"},
    "float64": {"tiny": "2.3e-308", "eps": "2.3e-16"},
}


def limit_of(source: Source, node: ast.expr, kind: str) -> str | None:
    """Text for the smallest number ("tiny") or the epsilon ("eps") of an expression's dtype."""
    torch = name_of(source, "torch")
    tensor = some_tensor(source, node)
    if torch is not None and tensor is not None:
        return f"{torch}.finfo({tensor}.dtype).{kind}"
    return _LIMITS.get(source.dtype, {}).get(kind)


def stands_alone(source: Source, statement: ast.stmt | None) -> bool:
    """Whether a statement is alone on its lines."""
    if statement is None:
        return False
    start, _ = source.span(statement)
    first = source.text[source.line_start(statement.lineno) : start]
    last = source.lines[(statement.end_lineno or statement.lineno) - 1]
    return not first.strip() and ";" not in last


_SIMPLE_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
_OWN_SCOPE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.IfExp,
              ast.BoolOp)  # fmt: skip


def free_name(source: Source, node: ast.AST, wish: str) -> str:
    """A name that is not used in the function."""
    taken = source.names(source.scope(node)) | source.module_names()
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    return name


def hoisted(source: Source, node: ast.expr, wish: str) -> tuple[str, Edit] | None:
    """Assign an expression to a new name before its statement: returns the name and the edit."""
    statement = source.statement(node)
    if not isinstance(statement, _SIMPLE_STATEMENTS) or not stands_alone(source, statement):
        return None
    at: ast.AST | None = source.parent(node)
    while at is not None and at is not statement:
        if isinstance(at, _OWN_SCOPE):
            return None
        at = source.parent(at)
    name = free_name(source, node, wish)
    start = source.line_start(statement.lineno)
    text = source.text_of(node)
    text = f"({text})" if "\n" in text else text
    return name, Edit(start, start, f"{source.indent(statement)}{name} = {text}{source.newline}")


def twice(source: Source, node: ast.expr, wish: str) -> tuple[str, str, list[Edit]]:
    """Use an expression twice: returns the text for the first use, that for the others, and the edits."""
    if is_simple(node):
        text = source.text_of(node)
        return text, text, []
    made = hoisted(source, node, wish)
    if made is not None:
        return made[0], made[0], [made[1]]
    name = free_name(source, node, wish)
    return f"({name} := {source.text_of(node)})", name, []


def grouped(source: Source, node: ast.expr) -> str:
    """The expression in a form on which a method can be called."""
    text = source.text_of(node)
    is_atom = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text if is_atom else f"({text})"

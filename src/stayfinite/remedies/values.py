"""Changes or limits the value that a line sets: rates, schedule formulas, initial values."""

from __future__ import annotations

import ast

from .edits import Edit, Remedy
from .matching import name_of, stands_alone
from .source import Source

__all__ = ["at_most", "filled", "lines_after", "lines_before", "with_argument"]


def with_argument(
    source: Source, call: ast.Call, key: str, position: int, value: str
) -> Edit | None:
    """Set an argument of a call, by its name or position; it is added if missing.

    >>> s = Source("opt = SGD(p, 0.1)")
    >>> with_argument(s, s.tree.body[0].value, "lr", 1, "0.01")
    Edit(start=13, end=16, text='0.01')
    """
    for keyword in call.keywords:
        if keyword.arg == key:
            return Edit(*source.span(keyword.value), value)
    if any(isinstance(a, ast.Starred) for a in call.args) or any(
        k.arg is None for k in call.keywords
    ):
        return None
    if position < len(call.args):
        return Edit(*source.span(call.args[position]), value)
    parts = [*call.args, *call.keywords]
    end = max((source.span(p)[1] for p in parts), default=source.span(call)[1] - 1)
    return Edit(end, end, f"{', ' if parts else ''}{key}={value}")


def at_most(source: Source, line: int, limit: str, is_list: bool = False) -> Remedy | None:
    """Limit what a line returns or assigns, or the result of its lambda, to `limit`.

    >>> s = Source("def f(step):\\n    return step / 10\\n")
    >>> at_most(s, 2, "1.0").edits
    (Edit(start=24, end=33, text='min(step / 10, 1.0)'),)
    """
    value = _result(source, line)
    if value is None:
        return None
    text = source.text_of(value)
    new = f"[min(rate, {limit}) for rate in {text}]" if is_list else f"min({text}, {limit})"
    return Remedy(
        name="cap_schedule",
        title=f"give the schedule an upper limit: {limit}",
        why="below it the schedule is as before",
        line=value.lineno,
        edits=(Edit(*source.span(value), new),),
    )


def _result(source: Source, line: int) -> ast.expr | None:
    """The expression whose value a line passes on."""
    statement = source.statement_at(line)
    inner = ast.walk(statement) if statement is not None else ()
    lambdas = [n for n in inner if isinstance(n, ast.Lambda) and n.lineno <= line]
    if lambdas:
        return lambdas[0].body if len(lambdas) == 1 else None
    if isinstance(statement, (ast.Return, ast.Assign)):
        return statement.value
    return None


def filled(source: Source, line: int) -> Remedy | None:
    """Replace values that are not finite by 0 in what a line computes."""
    statement = source.statement_at(line)
    if name_of(source, "torch") is None or statement is None:
        return None
    value = _made(statement)
    if value is None or not stands_alone(source, statement) or _is_array(source, statement):
        return None
    start, end = source.span(value)
    text = ".nan_to_num(0.0, 0.0, 0.0)"
    is_atom = isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    edits = (
        [Edit(end, end, text)] if is_atom else [Edit(start, start, "("), Edit(end, end, f"){text}")]
    )
    return Remedy(
        name="fill_initial",
        title="start with 0 where the value cannot be computed: nan_to_num",
        why="a count of 0, a logarithm of 0 or a mean of nothing gives no number; all others stay",
        line=statement.lineno,
        edits=tuple(edits),
    )


_HOLDERS = ("Parameter", "register_buffer", "register_parameter", "Buffer")


def _made(statement: ast.stmt) -> ast.expr | None:
    """The expression that gives a parameter or buffer its values."""
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.expr):
        return None
    while isinstance(value, ast.Call) and _name(value.func) in _HOLDERS:
        given = [a for a in value.args if not isinstance(a, ast.Constant)]
        if not given:
            return None
        value = given[0]
    if isinstance(statement, ast.Expr):
        if value is statement.value:  # a call in place: `weight.copy_(values)`
            is_copy = isinstance(value, ast.Call) and _name(value.func) in ("copy_", "set_")
            return value.args[0] if is_copy and isinstance(value, ast.Call) and value.args else None
        return value
    return value if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)) else None


def _is_array(source: Source, statement: ast.stmt) -> bool:
    """Whether a function may return an array: it uses numpy."""
    numpy = name_of(source, "numpy")
    names = {n.id for n in ast.walk(source.scope(statement)) if isinstance(n, ast.Name)}
    return isinstance(statement, ast.Return) and numpy is not None and numpy in names


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def lines_after(
    source: Source, line: int, lines: list[str], name: str, title: str, why: str
) -> Remedy | None:
    """Insert statements after the one at a line, in its block."""
    statement = source.statement_at(line)
    if statement is None or not stands_alone(source, statement) or hasattr(statement, "body"):
        return None
    at = source.line_start((statement.end_lineno or statement.lineno) + 1)
    if at and source.text[at - 1] != "\n":
        return None
    return _put(source, statement, at, lines, name, title, why)


def lines_before(
    source: Source, line: int, lines: list[str], name: str, title: str, why: str
) -> Remedy | None:
    """Insert statements before the one at a line."""
    statement = source.statement_at(line)
    if statement is None or not stands_alone(source, statement):
        return None
    at = source.line_start(statement.lineno)
    return _put(source, statement, at, lines, name, title, why)


def _put(
    source: Source, statement: ast.stmt, at: int, lines: list[str], name: str, title: str, why: str
) -> Remedy:
    indent = source.indent(statement)
    text = "".join(f"{indent}{each}{source.newline}" for each in lines)
    return Remedy(
        name=name, title=title, why=why, line=statement.lineno, edits=(Edit(at, at, text),)
    )

"""Drops bad rows of a batch before anything is computed with them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .catalogue import pattern
from .edits import Edit, Remedy
from .matching import free_name, name_of, stands_alone
from .source import Source

__all__ = ["taken_rows", "with_filled_values", "without_bad_rows", "without_bad_rows_of"]

_TITLE = "leave out the rows of the batch that are not finite"
_TITLE_LARGE = "leave out the rows of the batch that are far too large"
_WHY = "one bad row makes the mean NaN over all of them; the others are as good as ever"


_FILLED = "put 0 in place of what is not finite in the batch"
_WHY_FILLED = (
    "every row has such a value (a column that is constant, or missing throughout), so no row would be left; "
    "0 tells the model nothing, as the column does"
)


@pattern("drop_rows", _TITLE, _WHY)
def _not_by_itself(source: Source, node: ast.AST) -> None:
    """Needs the bad part of the batch: see `without_bad_rows`."""


def without_bad_rows(
    source: Source,
    line: int,
    batch: str | None,
    bad: Sequence[str | int],
    num_parts: int,
    limit: str | None = None,
    others: Sequence[str | int] = (),
    model: str | None = None,
) -> Remedy | None:
    """Drop the bad rows after the statement that unpacks the batch.

    `line`: in the function or loop with the batch; `batch`: its name, None for the target of the loop at that line; `bad`: keys or
    positions of its parts with bad rows; `num_parts`: the number of its tensors of equal length, 0 if it is a single one;
    `limit`: larger values are bad too; `others`: parts that were good this time; `model`: its name in a function that computes the
    loss, in which a batch without a good row then costs 0.
    """
    found = _parts(source, line, batch, num_parts)
    torch = name_of(source, "torch")
    if found is None or torch is None:
        return None
    statement, names, _ = found
    keep = free_name(source, statement, "keep")
    lines = _lines(source, torch, keep, names, bad, others, limit, num_parts)
    if lines is None:
        return None
    if model is not None:
        nothing = f"return 0.0 * sum(p.float().sum() for p in {model}.parameters())"
        lines[1:1] = [f"if not {keep}.any():", f"    {nothing}"]
    title = _TITLE if limit is None else _TITLE_LARGE
    return _placed(source, found, lines, "drop_rows", title, _WHY)


def with_filled_values(
    source: Source, line: int, batch: str | None, bad: Sequence[str | int], num_parts: int
) -> Remedy | None:
    """Replace values that are not finite by 0, if no row would be left; arguments as in `without_bad_rows`."""
    found = _parts(source, line, batch, num_parts)
    torch = name_of(source, "torch")
    if found is None or torch is None:
        return None
    names = found[1]
    if isinstance(names, str):
        given = [f"{names}[{k!r}]" for k in bad]
        if num_parts == 0 and not any(isinstance(k, str) for k in bad):
            given = [names]
    else:
        given = [names[k] for k in bad if isinstance(k, int) and k < len(names)]
    lines = [f"{x} = {torch}.nan_to_num({x}, nan=0.0, posinf=0.0, neginf=0.0)" for x in given]
    return _placed(source, found, lines, "fill_values", _FILLED, _WHY_FILLED) if lines else None


def _placed(
    source: Source,
    found: tuple[ast.stmt, list[str] | str, bool],
    lines: list[str],
    name: str,
    title: str,
    why: str,
) -> Remedy | None:
    """Statements after the one that names the batch's parts."""
    statement, _, is_inside = found
    indent = source.indent(statement)
    body = getattr(statement, "body", None)
    if is_inside and isinstance(body, list):
        place = body[0]
        if not stands_alone(source, place):
            return None
        indent, at = source.indent(place), source.line_start(place.lineno)
    else:
        if not stands_alone(source, statement):
            return None
        at = source.line_start((statement.end_lineno or statement.lineno) + 1)
        if at and source.text[at - 1] != "\n":
            return None
    text = "".join(f"{indent}{line}{source.newline}" for line in lines)
    return Remedy(
        name=name, title=title, why=why, line=statement.lineno, edits=(Edit(at, at, text),)
    )


def taken_rows(source: Source, line: int) -> list[str] | None:
    """The names to which a statement assigns rows: `x, y = data[i], labels[i]`, `x = data[i]`."""
    statement = source.statement_at(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts))
    names = [t.id for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, ast.Subscript)]
    return names if len(names) == len(pairs) else None


def without_bad_rows_of(
    source: Source, line: int, names: list[str], bad: Sequence[int], others: Sequence[int]
) -> Remedy | None:
    """Drop the bad rows after the statement that selects them; `bad`, `others`: as in `without_bad_rows`.

    Names that the following statements select with the same index belong to the same rows.
    """
    statement = source.statement_at(line)
    torch = name_of(source, "torch")
    if statement is None or torch is None or not stands_alone(source, statement):
        return None
    last, names = _taken_too(source, statement, names)
    at = source.line_start((last.end_lineno or last.lineno) + 1)
    lines = _lines(
        source, torch, free_name(source, statement, "keep"), names, bad, others, None, len(names)
    )
    if lines is None or source.text[at - 1] != "\n":
        return None
    text = "".join(f"{source.indent(statement)}{row}{source.newline}" for row in lines)
    return Remedy(
        name="drop_rows", title=_TITLE, why=_WHY, line=statement.lineno, edits=(Edit(at, at, text),)
    )


def _taken_too(source: Source, statement: ast.stmt, names: list[str]) -> tuple[ast.stmt, list[str]]:
    """`y = labels[i]` after `x = data[i]`: the last such statement, and all names."""
    block = source.block(statement)
    index = _index_of(statement)
    last, found = statement, list(names)
    for other in block[block.index(statement) + 1 :] if statement in block else ():
        more = taken_rows(source, other.lineno) if stands_alone(source, other) else None
        if more is None or _index_of(other) != index or set(more) & set(found):
            break
        last, found = other, [*found, *more]
    return last, found


def _index_of(statement: ast.stmt) -> str:
    taken = next((n for n in ast.walk(statement) if isinstance(n, ast.Subscript)), None)
    return ast.dump(taken.slice) if taken is not None else ""


def _lines(
    source: Source,
    torch: str,
    keep: str,
    names: list[str] | str,
    bad: Sequence[str | int],
    others: Sequence[str | int],
    limit: str | None,
    num_parts: int,
) -> list[str] | None:
    def is_good(x: str, is_bad: bool = True) -> str:
        is_plain = limit is None or not is_bad
        test = f"{torch}.isfinite({x})" if is_plain else f"({x}.abs() < {limit})"
        return f"{test}.reshape(len({x}), -1).all(1)"

    if isinstance(names, str):
        keys = [k for k in bad if isinstance(k, str)]
        is_parted = num_parts > 0 or bool(keys)
        tests = [is_good(names)]
        if is_parted:
            tests = [is_good(f"{names}[{k!r}]", k in bad) for k in (*bad, *others)]
        first = f"{keep} = " + " & ".join(tests)
        if is_parted and not keys:
            return [first, f"{names} = [part[{keep}] for part in {names}]"]
        if keys:
            return [first, f"{names} = {{key: value[{keep}] for key, value in {names}.items()}}"]
        return [first, f"{names} = {names}[{keep}]"]
    positions = [k for k in (*bad, *others) if isinstance(k, int) and k < len(names)]
    if not any(k in bad for k in positions):
        return None
    first = f"{keep} = " + " & ".join(is_good(names[k], k in bad) for k in positions)
    used = [n for n in names if n != "_" or _is_read(source, n)] or names
    left, right = ", ".join(used), ", ".join(f"{n}[{keep}]" for n in used)
    return [first, f"{left} = {right}"]


def _is_read(source: Source, name: str) -> bool:
    named = (n for n in ast.walk(source.tree) if isinstance(n, ast.Name) and n.id == name)
    return any(isinstance(n.ctx, ast.Load) for n in named)


def _parts(
    source: Source, line: int, batch: str | None, num_parts: int
) -> tuple[ast.stmt, list[str] | str, bool] | None:
    """The statement that names the parts of the batch; whether the edit goes inside it."""
    scope: ast.AST
    if batch is None:
        loop = _loop(source, line)
        if loop is None:
            return None
        target = loop.target
        if not _is_counted(loop):
            names = _names(target, num_parts)
            if names is not None:
                return loop, names, True
        if isinstance(target, ast.Tuple) and target.elts:
            target = target.elts[-1]
            names = _names(target, num_parts)
            if names is not None:
                return loop, names, True
        if not isinstance(target, ast.Name):
            return None
        batch, scope = target.id, loop
    else:
        scope = source.function_at(line)
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and node.value.id == batch
        ):
            names = _names(node.targets[0], num_parts)
            if names is not None:
                return node, names, False
    is_home = isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For))
    return (scope, batch, True) if is_home and isinstance(scope, ast.stmt) else None


def _loop(source: Source, line: int) -> ast.For | None:
    found = [n for n in ast.walk(source.tree)
             if isinstance(n, ast.For) and n.lineno <= line <= (n.end_lineno or 0)]  # fmt: skip
    return max(found, key=lambda n: n.lineno) if found else None


def _is_counted(loop: ast.For) -> bool:
    """Whether the first target is a count and not a part of the batch."""
    calls = (n.func for n in ast.walk(loop.iter) if isinstance(n, ast.Call))
    return any(isinstance(f, ast.Name) and f.id == "enumerate" for f in calls)


def _names(target: ast.expr, num_parts: int) -> list[str] | None:
    if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != num_parts:
        return None
    names = [e.id for e in target.elts if isinstance(e, ast.Name)]
    return names if len(names) == num_parts else None

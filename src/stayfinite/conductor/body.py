"""Running the statements of a loop's body again, where the loop itself cannot be sent back.

A script that raises on NaN by itself, or that takes no batches from a loader, is over or elsewhere
when its bad step is to be explained. Its frames are still there: the batch and the model are in their
variables, and the source says what was computed from them. Only statements that compute are run,
on a copy of the variables: assignments to plain names, and `with` and `if` blocks of them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import Tensor

from ..locate.frames import is_user_file

__all__ = ["Scene", "run_body", "scenes_of_frame", "scenes_of_traceback"]

_UNSAFE_CALLS = {
    "next", "append", "extend", "pop", "update", "write", "save", "step", "send", "put", "insert",
    "remove", "clear", "print", "open", "input", "exit", "sleep", "close", "backward", "setattr",
    "exec", "eval", "load_state_dict",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A frame of the user's code, as it stood."""

    file: str
    line: int
    function: str
    first_line: int
    variables: dict[str, Any]


def _scene(code: CodeType, line: int, frame: FrameType) -> Scene:
    variables = {**frame.f_globals, **frame.f_locals}
    return Scene(code.co_filename, line, code.co_name, code.co_firstlineno, variables)


def scenes_of_frame(frame: FrameType | None) -> list[Scene]:
    """The user's frames on the stack, innermost first."""
    found = []
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            found.append(_scene(frame.f_code, frame.f_lineno, frame))
        frame = frame.f_back
    return found


def scenes_of_traceback(tb: TracebackType | None) -> list[Scene]:
    """The user's frames that an exception went through, innermost first."""
    found = []
    while tb is not None:
        if is_user_file(tb.tb_frame.f_code.co_filename):
            found.append(_scene(tb.tb_frame.f_code, tb.tb_lineno, tb.tb_frame))
        tb = tb.tb_next
    return found[::-1]


def run_body(scene: Scene) -> list[Tensor]:
    """Compute the loop's body up to where it stood; the scalars that it made."""
    statements = list(_computing(_statements_before(scene)))
    if not statements:
        return []
    space = dict(scene.variables)
    before = {k: id(v) for k, v in space.items()}
    tree = ast.Module(body=statements, type_ignores=[])
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(tree, scene.file, "exec"), space)
    made = [v for k, v in space.items() if isinstance(v, Tensor) and before.get(k) != id(v)]
    return [t for t in made if t.dim() == 0 and t.is_floating_point()]


def _statements_before(scene: Scene) -> list[ast.stmt]:
    """The statements of the innermost enclosing loop that come before the current one."""
    source = "".join(linecache.getlines(scene.file))
    try:
        tree = ast.parse(source, scene.file)
    except (SyntaxError, ValueError):
        return []
    best: ast.For | ast.While | None = None
    for node in ast.walk(tree):
        if not isinstance(node, (ast.For, ast.While)) or not _holds(node, scene.line):
            continue
        if node.lineno >= scene.first_line and (best is None or node.lineno > best.lineno):
            best = node
    if best is None:
        return []
    before = []
    for statement in best.body:
        if _holds(statement, scene.line):
            before += _entered(statement, scene.line)
            break
        if statement.lineno > scene.line:
            break
        before.append(statement)
    return before


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _entered(statement: ast.stmt, line: int) -> list[ast.stmt]:
    """For a `with` that is still open: its statements before the current one."""
    if not isinstance(statement, ast.With):
        return []
    inner = [s for s in statement.body if (s.end_lineno or s.lineno) < line]
    if not inner:
        return []
    return [ast.copy_location(ast.With(items=statement.items, body=inner), statement)]


def _computing(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that only compute; what the others made is in the variables already."""
    for statement in statements:
        if isinstance(statement, ast.With):
            inner = list(_computing(statement.body))
            if inner:
                yield ast.copy_location(ast.With(items=statement.items, body=inner), statement)
        elif isinstance(statement, ast.If):
            inner = list(_computing(statement.body))
            other = list(_computing(statement.orelse))
            if len(inner) == len(statement.body) and len(other) == len(statement.orelse):
                yield statement
        elif _is_assignment(statement):
            yield statement


def _is_assignment(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return False
    names = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.expr)]
    if not all(isinstance(n, (ast.Name, ast.Tuple, ast.List, ast.Starred)) for n in names):
        return False
    assert statement.value is not None
    calls = [n for n in ast.walk(statement.value) if isinstance(n, ast.Call)]
    return not any(_called(c) in _UNSAFE_CALLS for c in calls)


def _called(call: ast.Call) -> str:
    func = call.func
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""

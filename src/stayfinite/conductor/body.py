"""Running the statements of a loop's body again, where the loop itself cannot be sent back.

A script that raises on NaN by itself, or that takes no batches from a loader, is over or elsewhere
when its bad step is to be explained. Its frames are still there: the batch and the model are in their
variables, and the source says what was computed from them. Only statements that compute are run,
on a copy of the variables: assignments to plain names, and `with`, `if` and `for` blocks of them.
"""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..locate.frames import is_user_file
from ..observe.counters import variables
from ..observe.turns import source_tree
from .window import BatchRef

__all__ = ["Scene", "can_bind", "run_body", "scenes_of_frame", "scenes_of_traceback"]

_UNSAFE_CALLS = {
    "next", "append", "extend", "pop", "update", "write", "save", "step", "send", "put", "insert",
    "remove", "clear", "print", "open", "input", "exit", "sleep", "close", "backward", "setattr",
    "exec", "eval", "load_state_dict",
}  # fmt: skip
_BATCH = "__stayfinite_batch__"
_PASS_ON = {"enumerate", "tqdm", "track", "guard", "iter"}


@dataclass(frozen=True)
class Scene:
    """A frame of the user's code, as it stood."""

    file: str
    line: int
    function: str
    first_line: int
    variables: dict[str, Any]


def _scene(code: CodeType, line: int, frame: FrameType) -> Scene:
    names = {**frame.f_globals, **variables(frame)}
    return Scene(code.co_filename, line, code.co_name, code.co_firstlineno, names)


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


def run_body(scene: Scene, ref: BatchRef | None = None) -> list[Tensor]:
    """Compute the loop's body up to where it stood; the scalars that it made.

    `ref`: the batch to compute it from, where the loop has them from a loader; else what is there.
    """
    home = _home_of(scene)
    statements = list(_computing(_statements_before(home, scene), set()))
    if not statements:
        return []
    space = dict(scene.variables)
    if ref is not None and len(ref.items) == 1 and home is not None:
        _bind(home, scene, ref.items[0][1], space)
    before = {k: id(v) for k, v in space.items()}
    tree = ast.Module(body=statements, type_ignores=[])
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        # Under the name of the function that the statements stand in.
        exec(compile(tree, scene.file, "exec").replace(co_name=scene.function), space)
    made = [v for k, v in space.items() if isinstance(v, Tensor) and before.get(k) != id(v)]
    return [t for t in made if t.dim() == 0 and t.is_floating_point()]


def can_bind(scene: Scene, ref: BatchRef) -> bool:
    """Whether this batch can be put where the loop takes its own."""
    home = _home_of(scene)
    return len(ref.items) == 1 and home is not None and _target(home) is not None


def _target(home: _Home) -> ast.expr | None:
    """What the loop takes its batch into: its own target, or that of the `next` in its body."""
    for statement in home.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        if _called(statement.value) == "next" and len(statement.targets) == 1:
            return _plain(statement.targets[0])
    if not isinstance(home, ast.For) or not _is_fed(home.iter):
        return None
    if not (isinstance(home.iter, ast.Call) and _called(home.iter) == "enumerate"):
        return _plain(home.target)
    if isinstance(home.target, ast.Tuple) and len(home.target.elts) == 2:
        return _plain(home.target.elts[1])
    return None


def _plain(target: ast.expr) -> ast.expr | None:
    return target if _holds_names_only(target) else None


def _bind(home: _Home, scene: Scene, item: Any, space: dict[str, Any]) -> None:
    """Give the names that the loop takes its batch into the batch: the body may have changed them."""
    target = _target(home)
    if target is None:
        return
    source = ast.copy_location(ast.Name(_BATCH, ast.Load()), target)
    tree = ast.Module([ast.copy_location(ast.Assign([target], source), target)], [])
    space[_BATCH] = item
    with contextlib.suppress(Exception):
        exec(compile(tree, scene.file, "exec"), space)
    del space[_BATCH]


def _is_fed(source: ast.expr) -> bool:
    """Whether a loop over this is fed by the batches as they come: not `zip`, not `range`."""
    if not isinstance(source, ast.Call):
        return isinstance(source, (ast.Name, ast.Attribute))
    name = _called(source)
    return name.endswith("Loader") or (
        name in _PASS_ON and bool(source.args) and _is_fed(source.args[0])
    )


def _statements_before(home: _Home | None, scene: Scene) -> list[ast.stmt]:
    """What the innermost loop, or the function, did since the optimizer step before the current one."""
    if home is None:
        return []
    before: list[ast.stmt] = []
    for statement in home.body:
        if _holds(statement, scene.line):
            before += _entered(statement, scene.line)
            break
        if statement.lineno > scene.line:
            break
        before.append(statement)
        if _is_optimizer_step(statement, scene.variables):
            before.clear()  # another step's window: its numbers have been drawn and used
    if isinstance(home, (ast.FunctionDef, ast.AsyncFunctionDef)) and _moves_arguments(home, before):
        return []
    return before


_Home = ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef


def _home_of(scene: Scene) -> _Home | None:
    """The innermost loop round the current line, inside its function; else the function itself."""
    tree = source_tree(scene.file)
    if tree is None:
        return None
    loop: ast.For | ast.While | None = None
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)) and _holds(node, scene.line):
            if node.lineno >= scene.first_line and (loop is None or node.lineno > loop.lineno):
                loop = node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == scene.first_line and node.name == scene.function:
                function = node
    return loop or function


def _moves_arguments(
    function: ast.FunctionDef | ast.AsyncFunctionDef, body: list[ast.stmt]
) -> bool:
    """Whether an argument gets another value: the one that it began with is gone."""
    arguments = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    written = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Name)]
    return any(isinstance(n.ctx, ast.Store) and n.id in arguments for n in written)


def _is_optimizer_step(statement: ast.stmt, variables: dict[str, Any]) -> bool:
    """`optimizer.step()`, `scaler.step(optimizer)`, also as `self.optimizer.step()`."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr != "step":
        return False
    owner = _value(call.func.value, variables)
    return isinstance(owner, (Optimizer, torch.amp.GradScaler))


def _value(node: ast.expr, variables: dict[str, Any]) -> Any:
    """What a name or a dotted name stands for; None for anything else."""
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, variables)
        return getattr(owner, "__dict__", {}).get(node.attr)
    return None


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


def _computing(statements: Iterable[ast.stmt], own: set[str]) -> Iterator[ast.stmt]:
    """Those that only compute; what the others made is in the variables already.

    `own`: names that these statements have given a value, so that adding to it harms nobody.
    """
    for statement in statements:
        if isinstance(statement, ast.With):
            inner = list(_computing(statement.body, own))
            if inner:
                yield ast.copy_location(ast.With(items=statement.items, body=inner), statement)
        elif isinstance(statement, (ast.If, ast.For)):
            if isinstance(statement, ast.For) and not _is_harmless(statement.iter):
                continue
            inner = list(_computing(statement.body, own))
            other = list(_computing(statement.orelse, own))
            if len(inner) == len(statement.body) and len(other) == len(statement.orelse):
                yield statement
        elif _is_assignment(statement, own):
            own.update(n.id for n in ast.walk(statement) if _is_stored(n))
            yield statement
        elif _adds_to(statement, own):
            yield statement


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_assignment(statement: ast.stmt, own: set[str]) -> bool:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
        is_own = isinstance(target, ast.Name) and target.id in own
        return is_own and _is_harmless(statement.value)
    else:
        return False
    if not all(map(_holds_names_only, targets)):
        return False
    assert statement.value is not None
    return _is_harmless(statement.value)


def _holds_names_only(target: ast.expr) -> bool:
    parts = [n for n in ast.walk(target) if isinstance(n, ast.expr)]
    return all(isinstance(n, (ast.Name, ast.Tuple, ast.List, ast.Starred)) for n in parts)


def _adds_to(statement: ast.stmt, own: set[str]) -> bool:
    """`parts.append(x)` where `parts` was made here."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.value
    return (
        call.func.attr in ("append", "extend")
        and isinstance(name, ast.Name)
        and name.id in own
        and all(map(_is_harmless, call.args))
    )


def _is_harmless(value: ast.expr) -> bool:
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
    return not any(_called(c) in _UNSAFE_CALLS for c in calls)


def _called(call: ast.Call) -> str:
    func = call.func
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""

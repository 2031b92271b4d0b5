"""Reads the script's own step counters from its loop variables."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType

from ...locate.frames import is_user_file
from ...parsing import parsed
from ...runtime.frames import Standing, calling_frames, variables

__all__ = ["counters"]

_MOST = 4
_Loop = (ast.For, ast.While, ast.AsyncFor)


def counters(
    frame: FrameType | None,
    traceback: TracebackType | None = None,
    standing: Sequence[Standing] = (),
) -> dict[str, int]:
    """The counters of the running loops, the outermost first: {"epoch": 1, "it": 76}.

    `frame`: the current frame of the step; `traceback`: where the script raised, if it did; `standing`: the saved frames of the
    backward that failed, if the loop has moved on.
    """
    places: list[tuple[FrameType, int]] = []
    kept = {id(s.frame): s for s in standing}
    if traceback is not None:
        while traceback is not None:
            places.append((traceback.tb_frame, traceback.tb_lineno))
            traceback = traceback.tb_next
    else:
        places = [(f, f.f_lineno) for f in reversed(calling_frames(frame))]
    if standing:
        places = [(s.frame, s.line) for s in reversed(standing)]
    found: dict[str, int] = {}
    for each, line in places:
        file = each.f_code.co_filename
        names = _names(file, line) if is_user_file(file) else ()
        known = {} if not names else kept[id(each)].variables if kept else variables(each)
        found.update((n, known[n]) for n in names if type(known.get(n)) is int)
    return dict(list(found.items())[-_MOST:])


@functools.lru_cache(maxsize=64)
def _names(file: str, line: int) -> tuple[str, ...]:
    """The counters of the loops around a line in its function, outermost first."""
    try:
        node: ast.AST | None = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    loops: list[ast.AST] = []
    while node is not None:
        node = next((c for c in ast.iter_child_nodes(node) if _holds(c, line)), None)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            loops = []
        elif isinstance(node, _Loop):
            loops.append(node)
    return tuple(dict.fromkeys(name for loop in loops for name in _counted_by(loop)))


def _holds(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


def _counted_by(loop: ast.AST) -> Iterator[str]:
    """The variables of `for i in range(...)` and `for i, x in enumerate(...)`, and those that the body increments."""
    if isinstance(loop, ast.For):
        call = loop.iter
        while isinstance(call, ast.Call) and _called(call) not in ("range", "enumerate", "count"):
            call = call.args[0] if call.args else call.func  # tqdm(range(...)) and similar
        target = loop.target
        if (
            isinstance(call, ast.Call)
            and _called(call) == "enumerate"
            and isinstance(target, ast.Tuple)
        ):
            target = target.elts[0]
        if isinstance(call, ast.Call) and isinstance(target, ast.Name):
            yield target.id
    for s in loop.body if isinstance(loop, _Loop) else ():
        if not isinstance(s, ast.AugAssign) or not isinstance(s.op, ast.Add):
            continue
        is_one = isinstance(s.value, ast.Constant) and s.value.value == 1
        if is_one and isinstance(s.target, ast.Name):
            yield s.target.id


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")

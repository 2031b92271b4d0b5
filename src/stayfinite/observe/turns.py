"""A loop that counts by itself makes no turn while its body is run again.

`for step in range(n): batch = next(batches)` takes a number from its `range` for every batch that it is
handed, those included that it gets a second time, and would end that many turns early. So while
its body is run again, Python is led from the end of the body straight to its beginning, the way a
debugger jumps: the head of the loop, with its `range` or its progress bar, is passed by.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import warnings
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

__all__ = ["Turns", "loop_lines", "source_tree"]


@dataclass(frozen=True)
class Loop:
    """A loop of the source."""

    lines: range
    body: int
    """The first line of its body."""
    is_for: bool


def loop_lines(frame: FrameType) -> range | None:
    """The lines of the loop that waits for a batch in this function; None where there is none.

    One whose head waits is fed by the batches; where `next` is called in a body, the batch may be for
    any of the loops round it.
    """
    found = _loops_round(frame, frame.f_lineno)
    if not found:
        return None
    return (found[-1] if frame.f_lineno < found[-1].body else found[0]).lines


def _loops_round(frame: FrameType, *lines: int) -> list[Loop]:
    """The loops of this function that have all these lines in them, the innermost last."""
    found = [
        loop
        for loop in _all_loops(frame.f_code.co_filename)
        if loop.lines.start >= frame.f_code.co_firstlineno and all(n in loop.lines for n in lines)
    ]
    return sorted(found, key=lambda loop: loop.lines.start)


@functools.lru_cache(maxsize=32)
def source_tree(file: str) -> ast.Module | None:
    """The syntax tree of a source file, read once; None where there is none to read."""
    try:
        return ast.parse("".join(linecache.getlines(file)), file)
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=32)
def _all_loops(file: str) -> tuple[Loop, ...]:
    tree = source_tree(file)
    if tree is None:
        return ()
    return tuple(
        Loop(
            range(n.lineno, (n.end_lineno or n.lineno) + 1), _first(n.body), isinstance(n, ast.For)
        )
        for n in ast.walk(tree)
        if isinstance(n, (ast.For, ast.While))
    )


def _first(body: list[ast.stmt]) -> int:
    """The first line that does something: a text that stands by itself is no code."""
    doing = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return (doing or body)[0].lineno


class Turns:
    """Keeps the loop that waits for a batch from counting, from its next optimizer step on."""

    def __init__(self, waiting: list[FrameType]) -> None:
        """`waiting`: the functions that wait for the batch, innermost first."""
        self._asked = [(frame, frame.f_lineno) for frame in waiting]
        self._frame: FrameType | None = None
        self._is_decided = False

    def note_step(self) -> None:
        """The optimizer's step of this turn: the loop that has both in it is the one that counts.

        (With accumulation, the loop over the parts of a batch has no step in it.)
        """
        if self._is_decided:
            return
        self._is_decided = True
        running = set()
        above: FrameType | None = sys._getframe(1)
        while above is not None:
            running.add(id(above))
            above = above.f_back
        for frame, line in self._asked:
            loops = _loops_round(frame, line, frame.f_lineno) if id(frame) in running else []
            if not loops:
                continue
            loop = loops[-1]
            # One whose head was waiting is fed by the batches themselves.
            if loop.is_for and line >= loop.body > loop.lines.start:
                self._lead(frame, loop)
            return

    def _lead(self, frame: FrameType, loop: Loop) -> None:
        if sys.gettrace() is not None or frame.f_trace is not None:
            return  # a debugger is here before us
        start = _entry(frame.f_code, range(loop.body, loop.lines.stop))

        def follow(frame: FrameType, event: str, _: Any) -> Any:
            if event == "return" or frame.f_lineno not in loop.lines:
                self.close()  # the loop was left
                return None
            if event == "line" and frame.f_lineno < loop.body:
                try:
                    _jump(frame, start)
                except Exception:  # it was left and is entered anew
                    self.close()
                    return None
            return follow

        self._frame = frame
        sys.settrace(_look_nowhere)
        frame.f_trace = follow

    def close(self) -> None:
        """From here on the loop counts as ever."""
        self._is_decided = True
        if self._frame is not None:
            with contextlib.suppress(AttributeError):
                del self._frame.f_trace
            self._frame = None
            if sys.gettrace() is _look_nowhere:
                sys.settrace(None)


def _jump(frame: FrameType, line: int) -> None:
    """Allowed where one follows a frame's lines. From Python 3.12 on, names that have no value yet get
    None by it, with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame.f_lineno = line  # type: ignore[misc]


def _entry(code: CodeType, body: range) -> int:
    """The line that is run first: of a statement over several lines it need not be the first one."""
    return next((n for _, _, n in code.co_lines() if n is not None and n in body), body.start)


def _look_nowhere(frame: FrameType, event: str, _: Any) -> None:
    """Functions that are called meanwhile are not followed."""

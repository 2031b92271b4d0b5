"""Reads the variables of running functions without leaving references."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import math
import sys
from collections.abc import Container
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from ..numerics.health import is_finite
from ..parsing import parsed

__all__ = [
    "Standing",
    "StepPlace",
    "bad_tensors",
    "calling_frames",
    "codes_of_step",
    "holds_bad_number",
    "is_at_loop_head",
    "standing_at",
    "variables",
]

_OPTIMIZED = 0x01  # as in inspect.CO_OPTIMIZED: a function, not a module or a class body
_PASSED_BY = ("stayfinite.", "torch.", "runpy", "importlib", "typer", "click", "_pytest", "pluggy")
"""No training is theirs, and everything there is can be reached from a test runner's."""


def calling_frames(frame: FrameType | None, most: int = 16) -> list[FrameType]:
    """The frames of the user's and the frameworks' code on the stack, innermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < most:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PASSED_BY):
            found.append(frame)
        frame = frame.f_back
    return found


@dataclass(frozen=True)
class Standing:
    """Where a function stood, with what its variables were then."""

    frame: FrameType
    line: int
    instruction: int
    variables: dict[str, Any]


def standing_at(frame: FrameType | None) -> tuple[Standing, ...]:
    """How the code on the stack stands, innermost first: for a moment that will be over when it is asked for."""
    return tuple(Standing(f, f.f_lineno, f.f_lasti, variables(f)) for f in calling_frames(frame))


class StepPlace:
    """Where the loop has made its last step; nothing is held of its frame.

    In nearly every step that is as many frames away as in the one before, so one look is enough.
    """

    def __init__(self) -> None:
        self.code: CodeType | None = None
        """Of the user's or a framework's function; None before the first step."""
        self.instruction = -1
        self._depth = 0
        self._inner: CodeType | None = None
        """Of what that function has called: torch's or ours."""

    @property
    def line(self) -> int | None:
        if self.code is None:
            return None
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end:
                return line
        return None

    def note(self, passed_by: Container[CodeType] = ()) -> None:
        """The caller is asked by a step. `passed_by`: functions that are not meant, such as an
        optimizer's own `step`."""
        try:
            frame = sys._getframe(self._depth)
            if frame.f_code is self.code:
                at = frame.f_lasti
                if at == self.instruction:
                    return  # the very call that it was the last time
                if sys._getframe(self._depth - 1).f_code is self._inner:
                    self.instruction = at
                    return
        except ValueError:  # it is less deep this time
            pass
        self._look_for(sys._getframe(1), passed_by)

    def _look_for(self, frame: FrameType | None, passed_by: Container[CodeType]) -> None:
        self.code, self._depth, self._inner = None, 0, None
        inner, depth = None, 1
        while frame is not None:
            if _is_meant(frame, passed_by):
                self.code, self.instruction = frame.f_code, frame.f_lasti
                self._depth, self._inner = depth, inner
                return
            inner, frame, depth = frame.f_code, frame.f_back, depth + 1


def _is_meant(frame: FrameType, passed_by: Container[CodeType]) -> bool:
    name = frame.f_globals.get("__name__", "")
    return frame.f_code not in passed_by and not name.startswith(("stayfinite.", "torch."))


def codes_of_step(optimizer: Any) -> list[CodeType]:
    """The `step` of its class and of the classes that this comes from."""
    own = [f for c in type(optimizer).__mro__ if (f := vars(c).get("step")) is not None]
    return [c for f in own if (c := getattr(inspect.unwrap(f), "__code__", None))]


def holds_bad_number(traceback: TracebackType | None) -> bool:
    """Whether a number that is not finite stands where an error went through: in the statement that raised or called,
    or in a condition round it. Others, such as a best score that begins at infinity, have nothing to do with it."""
    while traceback is not None:
        frame = traceback.tb_frame
        is_ours = str(frame.f_globals.get("__name__", "")).startswith(_PASSED_BY)
        if not is_ours and any(_is_bad_number(v) for v in _read_at(frame, traceback.tb_lineno)):
            return True
        traceback = traceback.tb_next
    return False


def _read_at(frame: FrameType, line: int) -> list[Any]:
    """The variables that this line and the conditions round it read."""
    names = _names_at(frame.f_code.co_filename, line)
    return [v for name, v in variables(frame).items() if name in names]


@functools.lru_cache(maxsize=32)
def _names_at(file: str, line: int) -> frozenset[str]:
    try:
        tree = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        part = getattr(node, "test", None) if hasattr(node, "body") else node
        found |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name)} if part else set()
    return frozenset(found)


def bad_tensors(traceback: TracebackType | None) -> list[Tensor]:
    """What a function of torch's was given that is not finite, where it has raised for that.

    From the innermost frame outwards, as far as the first one of the user's own code.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        held = [v for v in list(variables(frame).values()) if _is_bad_tensor(v)]
        with_nan = [t for t in held if bool(torch.isnan(t.detach()).any())]
        if held:
            return with_nan or held
        if not str(frame.f_globals.get("__name__", "")).startswith(_PASSED_BY):
            break
    return []


def _is_bad_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_meta and not is_finite(value)


def _is_bad_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        is_plain = value.numel() == 1 and value.is_floating_point() and value.device.type == "cpu"
        return is_plain and not math.isfinite(value.item())
    return isinstance(value, float) and not math.isfinite(value)


def is_at_loop_head(frame: FrameType | None) -> bool:
    """Whether the calling code stands at the head of a `for`, which asks for its next item."""
    while frame is not None and not _is_meant(frame, ()):
        frame = frame.f_back
    return frame is None or frame.f_lineno in _loop_heads(frame.f_code.co_filename)


@functools.lru_cache(maxsize=32)
def _loop_heads(file: str) -> frozenset[int]:
    try:
        tree = parsed("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return frozenset()
    loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.comprehension))]
    return frozenset(
        line for n in loops for line in range(n.iter.lineno, (n.iter.end_lineno or 0) + 1)
    )


def variables(frame: FrameType) -> dict[str, Any]:
    """A function's variables; nothing stays behind that would keep them alive after a `del`."""
    names = frame.f_locals
    found = dict(names)
    _let_go(frame, names)
    return found


def _let_go(frame: FrameType, names: Any) -> None:
    """Before Python 3.13 a function's `f_locals` is a copy that the frame holds on to; it is also what
    `locals()` has given the function, if it asked: then it is not ours to empty."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _OPTIMIZED:
        if sys.getrefcount(names) <= _NOBODY_ELSE:
            names.clear()


def _count_holders() -> int:
    """How many hold such a copy when nobody but the frame and we do, counted the same way."""
    frame = sys._getframe()
    names = frame.f_locals

    def inner(frame: FrameType, names: Any) -> int:
        return sys.getrefcount(names)

    return inner(frame, names)


_NOBODY_ELSE = _count_holders()

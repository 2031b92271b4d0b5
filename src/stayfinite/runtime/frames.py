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
"""Modules that are never part of a training. From the frames of a test runner, everything could be reached."""


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
    """The position and the variables of a function at some moment."""

    frame: FrameType
    line: int
    instruction: int
    variables: dict[str, Any]


def standing_at(frame: FrameType | None) -> tuple[Standing, ...]:
    """Save the positions and variables of the frames on the stack, innermost first."""
    return tuple(Standing(f, f.f_lineno, f.f_lasti, variables(f)) for f in calling_frames(frame))


class StepPlace:
    """The position of the loop's last step, without a reference to its frame.

    The frame is usually at the same depth of the stack as in the previous step, so it is tried first.
    """

    def __init__(self) -> None:
        self.code: CodeType | None = None
        """The code of the user's or the framework's function; None before the first step."""
        self.instruction = -1
        self._depth = 0
        self._inner: CodeType | None = None
        """The code that this function has called, torch's or ours."""

    @property
    def line(self) -> int | None:
        if self.code is None:
            return None
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end:
                return line
        return None

    def note(self, passed_by: Container[CodeType] = ()) -> None:
        """Note the position of the calling step. `passed_by`: functions to ignore, such as the optimizer's `step`."""
        try:
            frame = sys._getframe(self._depth)
            if frame.f_code is self.code:
                at = frame.f_lasti
                if at == self.instruction:
                    return  # the same call as last time
                if sys._getframe(self._depth - 1).f_code is self._inner:
                    self.instruction = at
                    return
        except ValueError:  # the stack is less deep this time
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
    """The code of `step` in its class and the base classes."""
    own = [f for c in type(optimizer).__mro__ if (f := vars(c).get("step")) is not None]
    return [c for f in own if (c := getattr(inspect.unwrap(f), "__code__", None))]


def holds_bad_number(traceback: TracebackType | None) -> bool:
    """Whether a statement in this traceback, or a condition around it, uses a number that is not finite.

    Other variables do not count: a best score may start at infinity.
    """
    while traceback is not None:
        frame = traceback.tb_frame
        is_ours = str(frame.f_globals.get("__name__", "")).startswith(_PASSED_BY)
        if not is_ours and any(_is_bad_number(v) for v in _read_at(frame, traceback.tb_lineno)):
            return True
        traceback = traceback.tb_next
    return False


def _read_at(frame: FrameType, line: int) -> list[Any]:
    """The variables that this line and the conditions around it read."""
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
    """The tensors that are not finite in the innermost frame that has any, up to the first frame of user code.

    They are usually the arguments of a torch function that raised because of them.
    """
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        found = [v for v in list(variables(frame).values()) if _is_bad_tensor(v)]
        with_nan = [t for t in found if bool(torch.isnan(t.detach()).any())]
        if found:
            return with_nan or found
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
    """Whether the calling code is at the head of a `for` loop, which requests its next item."""
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
    """The variables of a function, without a hidden copy that keeps them alive after a `del`."""
    names = frame.f_locals
    found = dict(names)
    _empty_copy(frame, names)
    return found


def _empty_copy(frame: FrameType, names: Any) -> None:
    """Empty the copy of the variables that `f_locals` leaves in the frame before Python 3.13.

    The function may have the same dict from a call of `locals()`; then it must not be emptied.
    """
    if sys.version_info < (3, 13) and frame.f_code.co_flags & _OPTIMIZED:
        if sys.getrefcount(names) <= _NUM_OWN_REFS:
            names.clear()


def _count_own_refs() -> int:
    """The reference count of such a copy if only the frame and this code refer to it."""
    frame = sys._getframe()
    names = frame.f_locals

    def inner(frame: FrameType, names: Any) -> int:
        return sys.getrefcount(names)

    return inner(frame, names)


_NUM_OWN_REFS = _count_own_refs()

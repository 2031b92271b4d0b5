"""A running function at its current line: its source position and variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType, TracebackType
from typing import Any

from ...runtime.frames import SavedFrame, variables
from .source import file_kind

__all__ = ["Scene", "scenes_of_frame", "scenes_of_saved", "scenes_of_traceback"]

_OPTIMIZED = 0x01  # as in inspect.CO_OPTIMIZED: a function, not a module or a class body
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_RUNNERS = {"runpy", "pytest", "_pytest", "pluggy", "importlib", "torchrun"}


@dataclass(frozen=True)
class Scene:
    """A frame of a training at some moment."""

    file: str
    line: int
    function: str
    code: CodeType = field(repr=False)
    local_variables: dict[str, Any] = field(repr=False)
    """Closure variables included; empty for the body of a module."""
    module_globals: dict[str, Any] = field(repr=False)
    column: int | None = None
    """Where the current call begins, with Python 3.11 and later."""
    is_over: bool = False
    """Whether an exception has ended it, so that its current statement was not completed."""
    has_left_early: bool = False
    """Whether the script has gone on to its next iteration without the optimizer's step."""

    @property
    def variables(self) -> dict[str, Any]:
        """All names that the function can use, without the builtins."""
        return {**self.module_globals, **self.local_variables}

    def moved(self, line: int, instruction: int) -> Scene:
        """The same variables at another place of this function."""
        return replace(self, line=line, column=_column(self.code, line, instruction))

    @property
    def is_function(self) -> bool:
        return bool(self.code.co_flags & _OPTIMIZED)


def scenes_of_frame(frame: FrameType | None) -> list[Scene]:
    """The frames on the stack that may belong to a training, innermost first."""
    found = []
    while frame is not None:
        if _is_wanted(frame):
            found.append(_scene(frame, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    return found


def scenes_of_saved(places: Iterable[SavedFrame]) -> list[Scene]:
    """The same for saved frames, which have moved on."""
    found = []
    for place in places:
        if _is_wanted(place.frame):
            scene = _scene(place.frame, place.line, place.instruction)
            if scene.local_variables:
                found.append(replace(scene, local_variables=place.variables))
            else:
                found.append(replace(scene, module_globals=place.variables))
    return found


def scenes_of_traceback(tb: TracebackType | None) -> list[Scene]:
    """The frames that an exception went through, innermost first."""
    found = []
    while tb is not None:
        if _is_wanted(tb.tb_frame):
            scene = _scene(tb.tb_frame, tb.tb_lineno, tb.tb_lasti)
            found.append(replace(scene, is_over=True))
        tb = tb.tb_next
    return found[::-1]


def _is_wanted(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    kind = file_kind(file)
    if (
        kind in ("torch", "stdlib")
        or str(frame.f_globals.get("__name__")).split(".")[0] in _RUNNERS
    ):
        return False
    return kind == "user" or not file.startswith(_OWN)


def _scene(frame: FrameType, line: int, instruction: int) -> Scene:
    code = frame.f_code
    is_module = not code.co_flags & _OPTIMIZED and frame.f_locals is frame.f_globals
    names = {} if is_module else variables(frame)
    column = _column(code, line, instruction)
    return Scene(
        code.co_filename, line, code.co_name, code, names, frame.f_globals, column,
    )  # fmt: skip


def _column(code: CodeType, line: int, instruction: int) -> int | None:
    if sys.version_info < (3, 11) or instruction < 0:
        return None
    start, _, column, _ = next(_skip(code.co_positions(), instruction // 2))
    return column if start == line else None


def _skip(positions: Iterator[Any], count: int) -> Iterator[Any]:
    for index, position in enumerate(positions):
        if index >= count:
            yield position
    yield (None, None, None, None)

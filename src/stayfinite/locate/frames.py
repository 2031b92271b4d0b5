"""Finds the lines of the user's code and of the library in a Python stack."""

from __future__ import annotations

import linecache
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

from ..records import Culprit

__all__ = [
    "BackwardPlace",
    "Frame",
    "Place",
    "backward_place",
    "culprit",
    "current_place",
    "is_user_file",
    "place_from_traceback",
    "place_of",
]

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DEMO = os.path.join(_OWN, "demo")
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_LIBRARY_ROOTS = tuple(
    {
        os.path.abspath(p)
        for p in [
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("platstdlib"),
            *sysconfig.get_paths().values(),
            *site.getsitepackages(),
            site.getusersitepackages(),
        ]
        if p and os.path.basename(p) not in ("bin", "Scripts")
    }
    - {sys.prefix, sys.base_prefix}
)
_TRACEBACK_LINE = re.compile(r'File "(?P<file>.*?)", line (?P<line>\d+), in (?P<function>.*)')
_MACHINERY = ("_python_dispatch.py", "_ops.py", "_compile.py", "module.py", "_contextlib.py")
_MAX_ORDER = 8
_MACHINERY_FOLDER = os.path.join(_TORCH, "_dynamo") + os.sep


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def source(self) -> str | None:
        return linecache.getline(self.file, self.line).strip() or None


def culprit(frame: Frame | None, what: str) -> Culprit | None:
    """A frame as the line that set the cause."""
    if frame is None:
        return None
    return Culprit(
        file=frame.file, line=frame.line, source=frame.source, function=frame.function, what=what
    )


@dataclass(frozen=True)
class Place:
    """The line in the user's code, and the line in the library below it, if there is one."""

    user: Frame | None = None
    library: Frame | None = None


def _is_machinery(frame: Frame) -> bool:
    """Whether this frame only forwards a call and does not help a reader."""
    if frame.function == "wrapped" and frame.file.endswith("_tensor.py"):
        return True  # the operators of Tensor: x ** y, 1 / x
    return frame.file.endswith(_MACHINERY) or frame.file.startswith(_MACHINERY_FOLDER)


@lru_cache(maxsize=4096)
def _kind(file: str) -> str:
    """own | torch | library | user"""
    if file.startswith("<frozen") or not file:
        return "library"
    path = os.path.abspath(file) if not file.startswith("<") else file
    if path.startswith(_OWN + os.sep) and not path.startswith(_DEMO + os.sep):
        return "own"
    if path.startswith(_TORCH + os.sep):
        return "torch"
    if any(path.startswith(root + os.sep) for root in _LIBRARY_ROOTS):
        return "user" if path.startswith(_DEMO + os.sep) else "library"
    if "site-packages" in path or "dist-packages" in path:
        return "library"
    return "user"


def is_user_file(file: str) -> bool:
    """Whether this file is part of the user's program."""
    return _kind(file) == "user"


def place_of(frames: Iterable[Frame]) -> Place:
    """The two relevant lines in a stack, which is given from the innermost frame outwards."""
    library: Frame | None = None
    functional: Frame | None = None
    for frame in frames:
        kind = _kind(frame.file)
        if kind == "user":
            return Place(frame, library or functional)
        if kind == "library" and library is None:
            library = frame
        if kind == "torch" and functional is None and not _is_machinery(frame):
            functional = frame
    # All code is in installed packages, so use the innermost line.
    return Place(library, functional if library else None)


def _walk(frame: FrameType | None) -> Iterable[Frame]:
    while frame is not None:
        yield Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def current_place() -> Place:
    """The place from which the current operator was called."""
    return place_of(_walk(sys._getframe(1)))


def _own_backward_code() -> Frame | None:
    """The user's line in a custom `backward` or a hook, if such code is running."""
    inner: list[Frame] = []
    for frame in _walk(sys._getframe(1)):
        if frame.function == "_engine_run_backward":
            user = place_of(inner).user
            return user if user is not None and _kind(user.file) == "user" else None
        inner.append(frame)
    return None


@dataclass(frozen=True)
class BackwardPlace:
    """The place where the forward made an autograd node."""

    place: Place
    number: int
    """The sequence number of the node that the forward made."""
    order: int
    """1 for a node of the forward, 2 for one of its derivative, and so on."""
    is_own_code: bool
    """Whether the operator runs in a custom backward or a hook; then `place` is its line, and the forward call is its second
    entry.
    """


def backward_place(node: Any) -> BackwardPlace:
    """The place of the current autograd node, recorded by anomaly mode.

    A node that was made by a backward (`create_graph=True`) remembers the node that was running then. The line that a user can
    change is that of the forward.
    """
    order = 1
    while order < _MAX_ORDER and node.metadata.get("parent_") is not None:
        node = node.metadata["parent_"]
        order += 1
    recorded = node.metadata.get("traceback_")
    place = place_from_traceback(recorded) if recorded else Place()
    own = _own_backward_code()
    if own is not None:
        place = Place(own, place.user)
    return BackwardPlace(place, int(node._sequence_nr()), order, own is not None)


def place_from_traceback(lines: Iterable[str]) -> Place:
    """The place in the forward stack that anomaly mode recorded (outermost frame first)."""
    frames = []
    for text in lines:
        match = _TRACEBACK_LINE.search(text)
        if match:
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
    return place_of(reversed(frames))

"""A fix of a setting in the line where it is made: the optimizer's constructor, a parameter's allocation.

That line has already run, so its effect is run instead: the optimizer steps with the new setting, or the parameter has the
values that the new line would give it.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch

from ...diagnose.evidence import Evidence
from ...locate.frames import is_user_file
from ...records import Culprit
from ...remedies import Candidate, Source, apply, find, with_keyword
from ...runtime.window import Window
from .. import changes
from ..body.scene import Scene
from ..evidence.culprit import culprit_of
from ..evidence.script_files import own_files
from ..laboratory import Laboratory
from ..replays.changed_source import ChangedSource, text_of_file
from .where_set import source_of

__all__ = [
    "SettingChange",
    "loss_change",
    "memory_changes",
    "only_call",
    "optimizer_change",
    "place_of_culprit",
    "shown_path",
    "source_of_culprit",
]

_MAX_FILES = 200
_SMALL = 0.02


@dataclass(eq=False)
class SettingChange:
    """A changed text whose effect is a setting."""

    file: str
    before: str
    after: str
    candidate: Candidate
    apply: Callable[[], AbstractContextManager[None]]
    is_from_snapshot: bool = False
    """Whether it has acted since the last healthy state, so that the steps since then are replayed with it."""
    at: Callable[[Window], AbstractContextManager[None]] | None = None
    """Its value in one step, if it is not the same in all."""
    beyond: Callable[[], AbstractContextManager[None]] | None = None
    """A value beyond the proposed one that has to pass too, as a safety margin."""
    ways: tuple[ChangedSource, ...] = ()
    """Sources that compute the value, if it is searched: the first that holds is used."""
    note: str = ""
    """Notes about the proof."""
    room: float = 0.0
    """How much of a healthy loss it may change by its nature; the gradients have to be nearly the same."""
    name = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.before.encode()).hexdigest()

    @classmethod
    def from_apply(cls, apply: Callable[[], AbstractContextManager[None]]) -> SettingChange:
        """Make it from its encoding on another rank."""
        return cls("", "", "", Candidate((), ""), apply)

    def installed(self) -> AbstractContextManager[None]:
        return self.apply()

    def scene(self, scene: Scene, is_caller: bool = False) -> Scene:
        """The loop's own statements are unchanged."""
        return scene

    def line_after(self, line: int) -> int:
        return line


def optimizer_change(lab: Laboratory, e: Evidence) -> SettingChange | None:
    """The optimizer with a changed setting, if there is only one call in the user's files that makes it."""
    kind = e.optimizer.get("type")
    found = _setting(e)
    if kind is None or found is None:
        return None
    key, text, value = found
    built = only_call(lab, kind)
    if built is None:
        return None
    file, before, source, call = built
    made = with_keyword(source, call, key, text)
    after, done = apply(before, [made])
    return SettingChange(
        file, before, after, Candidate(done, after), partial(changes.with_setting, key, value)
    )


def _setting(e: Evidence) -> tuple[str, str, float] | None:
    """Key, text and value of the setting."""
    is_half = e.dtype in ("float16", "bfloat16")
    if e.optimizer.get("centered") == "True" and e.kernel == "sqrt":
        return "centered", "False", False
    if "eps" not in e.optimizer:
        return None
    return ("eps", "1e-4", 1e-4) if is_half else ("eps", "1e-8", 1e-8)


def only_call(lab: Laboratory, kind: str) -> tuple[str, str, Source, ast.Call] | None:
    """The only call in the user's files that makes such an object; files of this training first."""
    calls = [
        (file, text, source, call)
        for file, text in _user_files()
        if f"{kind}(" in text
        for source, call in _calls(text, kind)
    ]
    home = set(own_files(lab.investigation))
    near = [c for c in calls if c[0] in home]
    for found in (near, calls):
        if len(found) == 1:
            return found[0]
    return None


def _user_files() -> Iterator[tuple[str, str]]:
    names = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    files = [f for f in dict.fromkeys(names) if isinstance(f, str) and f.endswith(".py")]
    for file in [f for f in files if is_user_file(f)][:_MAX_FILES]:
        text = text_of_file(file)
        if text is not None:
            yield file, text


def _calls(text: str, kind: str) -> list[tuple[Source, ast.Call]]:
    try:
        source = Source(text)
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name == kind:
                found.append((source, node))
    return found


def shown_path(file: str) -> str:
    """The path relative to the working directory, if it is below."""
    relative = os.path.relpath(file)
    return file.lstrip(os.sep) if relative.startswith("..") else relative


def loss_change(lab: Laboratory, e: Evidence) -> SettingChange | None:
    """`nn.CTCLoss` with zero_infinity, if there is only one call in the user's files that makes it."""
    if e.kernel != "_ctc_loss":
        return None
    built = only_call(lab, "CTCLoss")
    live = [m for m in gc.get_objects() if type(m) is torch.nn.CTCLoss]
    if built is None or not live:
        return None
    file, before, source, call = built
    made = with_keyword(source, call, "zero_infinity", "True")
    after, done = apply(before, [made])
    return SettingChange(file, before, after, Candidate(done, after), partial(_zero_infinity, live))


@contextlib.contextmanager
def _zero_infinity(losses: list[torch.nn.CTCLoss]) -> Iterator[None]:
    kept = [m.zero_infinity for m in losses]
    for m in losses:
        m.zero_infinity = True
    try:
        yield
    finally:
        for m, value in zip(losses, kept):
            m.zero_infinity = value


def memory_changes(lab: Laboratory, e: Evidence) -> Iterator[SettingChange]:
    """A parameter that starts with zeros, or small random numbers, if nothing fills the memory it is given."""
    m = e.memory
    if m is None or m.file is None or m.line is None or not e.is_first_step:
        return
    text = text_of_file(m.file)
    tensor = next(
        (t for n, t in [*lab.state.parameters(), *lab.state.buffers] if m.name.endswith(n)), None
    )
    if text is None or tensor is None or not is_user_file(m.file):
        return
    numbers = _SMALL * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
    for name, values in (("zeros", torch.zeros(())), ("small_random", numbers)):
        source = Source(text)
        statement = source.statement_at(m.line)
        nodes = ast.walk(statement) if statement is not None else ()
        made = [r for r in (find(source, n, name) for n in nodes) if r is not None]
        if len(made) == 1 and (name == "zeros" or isinstance(tensor, torch.nn.Parameter)):
            after, done = apply(text, made)
            run = partial(_started_with, tensor, values)
            yield SettingChange(m.file, text, after, Candidate(done, after), run)


@contextlib.contextmanager
def _started_with(tensor: torch.Tensor, values: torch.Tensor) -> Iterator[None]:
    kept = tensor.detach().clone()
    with torch.no_grad():
        tensor.copy_(values)
    try:
        yield
    finally:
        with torch.no_grad():
            tensor.copy_(kept)


def place_of_culprit(lab: Laboratory, e: Evidence, cause: str) -> Culprit | None:
    """The line that set the cause. An error on the way to it must not end the search for fixes."""
    with contextlib.suppress(Exception):
        return culprit_of(lab.investigation, e, cause)
    return None


def source_of_culprit(lab: Laboratory, e: Evidence, cause: str) -> tuple[Culprit, Source] | None:
    """The line that set the cause, and the file in which it stands."""
    place = place_of_culprit(lab, e, cause)
    source = source_of(place.file) if place is not None else None
    return (place, source) if place is not None and source is not None else None

"""Uses a changed source file in replays only; the live training keeps the original.

The changed text has its own file name, so that the code of a replay finds its own lines. During a replay, each function of the
file whose code differs is redirected to a copy with the new code. This applies only to the replaying thread.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import hashlib
import itertools
import linecache
import os
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...parsing import without_syntax_warnings
from ...putting_back import put_back
from ..body.scene import Scene
from ..body.source import substituted
from .trampoline import trampoline

__all__ = ["ChangedSource", "NotRunnable", "functions_of", "text_of_file"]

_NUMBERS = itertools.count(1)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class NotRunnable(Exception):
    """Raised if this change cannot be used in a replay."""


def text_of_file(file: str) -> str | None:
    """The text that the running code was compiled from, if it is still available."""
    return "".join(linecache.getlines(file)) or None


@dataclass(frozen=True)
class _Key:
    """The key of a function in a file: its qualified name, and an index if there are several."""

    path: tuple[str, ...]
    number: int


def _codes(code: types.CodeType, path: tuple[str, ...] = ()) -> Iterator[tuple[_Key, Any]]:
    """All functions in a file, by key."""
    yield _Key(path, 0), code
    seen: dict[str, int] = {}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            number = seen[inner.co_name] = seen.get(inner.co_name, -1) + 1
            yield from _codes(inner, (*path, f"{inner.co_name}#{number}"))


@dataclass(eq=False)
class ChangedSource:
    """A file with a changed text."""

    file: str
    before: str
    after: str
    functions: Sequence[types.FunctionType] | None = None
    """All functions of the file, if they are known already, because searching them takes long."""
    name: str = field(init=False)
    _old: dict[_Key, types.CodeType] = field(init=False, repr=False)
    _new: dict[_Key, types.CodeType] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.name = (
            f"{self.file} (change {next(_NUMBERS)})"  # functions that were found for another file
        )
        try:
            with without_syntax_warnings():
                old = compile(self.before, self.file, "exec", dont_inherit=True)
                new = compile(self.after, self.name, "exec", dont_inherit=True)
            self._old, self._new = dict(_codes(old)), dict(_codes(new))
        except (SyntaxError, ValueError) as error:
            raise NotRunnable(f"the changed text does not compile: {error}") from error
        if self._old.keys() != self._new.keys() and not self._is_matched():
            raise NotRunnable("the change adds or takes away a function")
        # The sandbox hides them from the collector.
        self._functions = functions_of(self.file) if self.functions is None else self.functions
        self._twins: dict[types.CodeType, types.CodeType] = {}
        for key, code in self._old.items():
            if key in self._new:
                self._twins[code] = self._new[key]

    def _is_matched(self) -> bool:
        """A lambda or comprehension may be added to or removed from a function."""
        return all(k in self._new for k in self._old if not k.path or "<" not in k.path[-1])

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.before.encode()).hexdigest()

    def line_after(self, line: int) -> int:
        """The line in the changed file that corresponds to a line of the original."""
        return _moved(self.before, self.after, line)

    def scene(self, scene: Scene, is_caller: bool = False) -> Scene:
        """The corresponding scene in the changed file."""
        if scene.file != self.file:
            return scene
        code = self._twin_of(scene.code)
        if code is None and is_caller:
            return scene
        if code is None:
            raise NotRunnable("the file is not the one that runs")
        line = self.line_after(scene.line)
        return replace(scene, file=self.name, line=line, code=code)

    def _twin_of(self, code: types.CodeType) -> types.CodeType | None:
        """The changed code of a running function; None if it was not compiled from this text."""
        if code in self._twins:
            return self._twins[code]
        place = (code.co_name, code.co_firstlineno)
        for old, new in self._twins.items():
            if (old.co_name, old.co_firstlineno) == place and _is_same(old, code):
                return new
        return None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install the change for one replay in this thread."""
        lines = self.after.splitlines(keepends=True)
        linecache.cache[self.name] = (len(self.after), None, lines, self.name)
        codes: dict[types.CodeType, types.CodeType] = {
            old: new for old, new in self._twins.items() if not _is_same(old, new)
        }
        undo: list[Callable[[], None]] = []
        try:
            for function in self._functions:
                made = self._redirect(function)
                if made is not None:
                    undo.append(made)
                    new = self._twin_of(_original(function))
                    assert new is not None
                    codes[function.__code__] = codes[_original(function)] = new
            with substituted(codes):
                yield
        finally:
            linecache.cache.pop(self.name, None)
            put_back(*undo)

    def _redirect(self, function: types.FunctionType) -> Callable[[], None] | None:
        old = function.__code__
        new = self._twin_of(old)
        if new is None or _is_same(old, new):
            return None
        cells = dict(zip(old.co_freevars, function.__closure__ or ()))
        if not set(new.co_freevars) <= set(cells):
            raise NotRunnable("the change uses a variable of the function around it")
        changed = _twin(function, new, tuple(cells[n] for n in new.co_freevars))
        as_it_is = _twin(function, old, function.__closure__ or ())
        mine = threading.get_ident()

        def choose() -> types.FunctionType:
            ident = threading.get_ident()
            # Threads of autograd belong to this replay.
            is_ours = ident == mine or ident not in threading._active  # type: ignore[attr-defined]
            return changed if is_ours else as_it_is

        function.__code__ = trampoline(old, choose)
        _ORIGINALS[id(function)] = old

        def back() -> None:
            function.__code__ = old
            _ORIGINALS.pop(id(function), None)

        return back


_ORIGINALS: dict[int, types.CodeType] = {}


def _original(function: types.FunctionType) -> types.CodeType:
    return _ORIGINALS.get(id(function), function.__code__)


def _twin(function: types.FunctionType, code: types.CodeType, closure: Any) -> types.FunctionType:
    twin = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__ = function.__qualname__
    twin.__dict__.update(function.__dict__)
    return twin


def functions_of(file: str) -> list[types.FunctionType]:
    """All living functions of a file, including nested ones; a script may have been compiled by its relative path."""
    names = {file, os.path.abspath(file), os.path.relpath(file)}
    return [
        f
        for f in gc.get_objects()
        if type(f) is types.FunctionType
        and f.__code__.co_filename in names
        and f.__code__.co_name not in _COMPREHENSIONS  # a new function object with every call
    ]


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two code objects do the same, regardless of their lines."""
    names = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(one, n) != getattr(other, n) for n in names):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _is_same(a, b)
        if isinstance(a, types.CodeType) and isinstance(b, types.CodeType)
        else type(a) is type(b) and repr(a) == repr(b)
        for a, b in zip(one.co_consts, other.co_consts)
    )


def _moved(before: str, after: str, line: int) -> int:
    """The number of a line in another version of the text."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if i1 <= line - 1 < i2:
            if tag == "equal":
                return j1 + line - i1
            # The last lines of a changed part are its own; insertions before it are new.
            return max(j1 + 1, j2 - (i2 - line))
    return len(new)

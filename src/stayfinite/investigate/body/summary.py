"""The effects of calling a Python function, read from its source; and the function without its side effects.

A helper that computes the loss and also counts, logs or appends can be called again without that: statements with side effects
are removed from it, unless its result depends on them.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .access import Access
from .compiled import compile_function
from .cut import Cut, Rules, rebuild, touches
from .judge import Judge
from .source import FunctionSource, current_code, function_source
from .units import Unit, build_units, flat
from .values import FRESH, UNKNOWN, Env, Path, Value, known

__all__ = ["FunctionSummary", "Functions"]

_GENERATOR = 0x20 | 0x80 | 0x200  # as in inspect.CO_…: generators and coroutines
_MAX_FUNCTIONS = 100
_MAX_STATEMENTS = 400
_Key = tuple[Any, ...]


@dataclass
class FunctionSummary:
    """The effects, in terms of its parameters, globals and closure variables."""

    outside: str | None = None
    is_training: bool = False
    is_backward: bool = False
    is_step: bool = False
    optimizers: tuple[object, ...] = ()
    is_exchanging: bool = False
    needs_protection: bool = False
    reads: set[Path] = field(default_factory=set)
    mutates: set[Path] = field(default_factory=set)
    replaces: set[Path] = field(default_factory=set)
    result: Value = FRESH


class Functions:
    """All functions that the statements of one body call."""

    def __init__(
        self,
        is_training_object: Callable[[object], bool],
        is_full: bool = False,
        is_buffer: Callable[[object, str], bool] = lambda module, name: False,
        is_loose: bool = False,
    ) -> None:
        self.is_full = is_full
        self.is_loose = is_loose
        self.is_buffer = is_buffer
        self.judge = Judge(is_training_object, self.summarize)
        self._summaries: dict[_Key, FunctionSummary] = {}
        self._budget = _MAX_FUNCTIONS
        self._outer: dict[str, Value] = {}
        self._spaces: dict[str, dict[str, Any]] = {}
        self._alive: list[Any] = []
        self._left_out: dict[types.CodeType, set[ast.stmt]] = {}
        self._analyzed: dict[types.CodeType, tuple[FunctionSource, list[Unit], Cut]] = {}
        self._compiled: dict[types.CodeType, types.CodeType] = {}

    def value_of(self, root: str) -> Value:
        """A variable of another scope: a function's closure, or a module."""
        if root in self._outer:
            return self._outer[root]
        name, _, space = root.partition("@")
        values = self._spaces.get(space, {})
        return known(values[name]) if name in values else UNKNOWN

    def code_for(self, code: types.CodeType) -> types.CodeType:
        """The code to run instead of this one: without side effects."""
        code = current_code(code)
        if not self._left_out.get(code):
            return code
        if code not in self._compiled:
            self._compiled[code] = self._compile(code)
        return self._compiled[code]

    def summarize(
        self,
        func: types.FunctionType,
        positional: list[Value],
        named: dict[str, Value],
        is_library: bool,
        depth: int,
    ) -> FunctionSummary | None:
        """The summary; None if the source is unknown, or a call leads to too many functions."""
        source = function_source(func.__code__)
        if depth == 0:
            self._budget = _MAX_FUNCTIONS
        self._budget -= 1
        if source is None or self._budget < 0:
            return None
        values = _bind(func, positional, named)
        key = (
            current_code(func.__code__),
            *((name, _fingerprint(v)) for name, v in sorted(values.items())),
        )
        if key not in self._summaries:
            self._summaries[key] = FunctionSummary(result=UNKNOWN)  # while it is being analyzed
            self._alive.append((func, values))
            self._summaries[key] = self._analyze(func, source, values, is_library)
        return self._summaries[key]

    def _analyze(
        self,
        func: types.FunctionType,
        source: FunctionSource,
        values: dict[str, Value],
        is_library: bool,
    ) -> FunctionSummary:
        body = _statements(source)
        if sum(1 for s in body for n in ast.walk(s) if isinstance(n, ast.stmt)) > _MAX_STATEMENTS:
            return FunctionSummary(outside=f"{func.__name__} is too long to be analyzed")
        env = _environment(func, values)
        self._outer.update({env.root(n): env.lookup(n) for n in env.cells})
        self._spaces[str(id(env.module_globals))] = env.module_globals
        units = build_units(body, env, self.judge)
        for unit in flat(units) if is_library else ():
            unit.is_dead = False  # a library's code is run as it is
        local = frozenset(env.root(n) for n in env.local_names if n not in env.cells)
        cut = Cut(units, Rules(lost_names=local, is_call=True, is_full=self.is_full))
        cut.solve(lambda u: _is_result(u, env.is_generator))
        for unit in cut.all:
            if unit.access.in_place and unit not in cut.kept and not is_library:
                cut.blocked.setdefault(unit, "it changes a tensor in place, which nothing needs")
        self._note(current_code(func.__code__), source, units, cut, is_library)
        return self._describe(func, cut, env, is_library)

    def _note(
        self,
        code: types.CodeType,
        source: FunctionSource,
        units: list[Unit],
        cut: Cut,
        is_library: bool,
    ) -> None:
        if is_library:
            return
        self._analyzed[code] = (source, units, cut)
        gone = {u.node for u in cut.all if u in cut.blocked or u in cut.trapped}
        self._left_out.setdefault(code, set()).update(gone)
        self._compiled.pop(code, None)

    def _describe(
        self, func: types.FunctionType, cut: Cut, env: Env, is_library: bool
    ) -> FunctionSummary:
        found = FunctionSummary()
        local = cut.rules.lost_names
        results = [u for u in cut.all if _is_result(u, env.is_generator)]
        stuck = [u for u in results if u in cut.blocked]
        if stuck:
            found.outside = f"{func.__qualname__}: {cut.blocked[stuck[0]]}"
        if env.is_generator and cut.blocked:
            found.outside = (
                found.outside or f"{func.__qualname__}: {next(iter(cut.blocked.values()))}"
            )
        found.is_exchanging = any(u.access.is_exchanging for u in cut.all)
        for unit in cut.all:
            if unit not in cut.blocked and unit not in cut.trapped:
                self._add(found, unit.access)
                found.mutates |= {p for p in unit.access.writes if _is_felt(p, unit, local)}
        found.replaces = {p for p in found.mutates if _is_replaced(p, cut)}
        for unit in cut.kept:
            found.reads |= {
                p for p in unit.access.reads
                if cut.reaching(p, unit)[1] and (p[0] not in local or _is_argument(p, func))
                if len(p) > 1 or p not in unit.access.owners
            }  # fmt: skip
        is_changing = any("@" in p[0] for p in found.mutates)
        found.needs_protection |= not is_library and (
            bool(cut.blocked or cut.trapped) or is_changing
        )
        found.result = _common([u.result for u in results if isinstance(u.node, ast.Return)])
        return found

    def _add(self, found: FunctionSummary, access: Access) -> None:
        found.is_training |= access.is_training
        found.is_backward |= access.is_backward
        found.is_step |= access.is_step
        found.optimizers += access.optimizers
        found.needs_protection |= access.needs_protection

    def _compile(self, code: types.CodeType) -> types.CodeType:
        source, units, cut = self._analyzed[code]
        if isinstance(source.node, ast.Lambda):
            return code
        gone = self._left_out[code]
        body = rebuild(
            units, cut, lambda u: u.node not in gone or u in cut.trapped, lambda u: [] if u.node in gone and not _is_with(u) else None
        )  # fmt: skip
        return compile_function(source, body, code)


def _is_with(unit: Unit) -> bool:
    return isinstance(unit.node, ast.With)


def _statements(source: FunctionSource) -> list[ast.stmt]:
    node = source.node
    if not isinstance(node, ast.Lambda):
        return node.body
    return [ast.copy_location(ast.Return(node.body), node.body)]


def _is_result(unit: Unit, is_generator: bool) -> bool:
    if unit.access.is_training or isinstance(unit.node, ast.Return):
        return True
    if not is_generator or unit.blocks:
        return False
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(unit.node))


def _is_felt(path: Path, unit: Unit, local: frozenset[str]) -> bool:
    """Whether it is visible for the caller, and not just a local name."""
    return path[0] not in local or len(path) > 1 or path in unit.access.mutates


def _is_replaced(path: Path, cut: Cut) -> bool:
    """Whether it only gets new values that do not depend on the one before (`self.last_output = x`)."""
    changed = {p for u in cut.all for p in u.access.mutates - u.access.replaces}
    if any(touches(p, path) for p in changed):
        return False
    readers = [
        (u, p) for u in cut.all for p in u.access.reads - u.access.owners if touches(p, path)
    ]
    return not any(cut.reaching(p, u)[1] for u, p in readers)


def _is_argument(path: Path, func: types.FunctionType) -> bool:
    code = func.__code__
    return path[0] in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _common(values: list[Value]) -> Value:
    if not values or all(v.kind == "fresh" for v in values):
        return FRESH
    first = values[0]
    is_same = all(v.is_known and v.obj is first.obj for v in values)
    return first if is_same else UNKNOWN


def _bind(
    func: types.FunctionType, positional: list[Value], named: dict[str, Value]
) -> dict[str, Value]:
    code = func.__code__
    names = code.co_varnames[: code.co_argcount]
    values = dict(zip(reversed(names), map(known, reversed(func.__defaults__ or ()))))
    values.update((k, known(v)) for k, v in (func.__kwdefaults__ or {}).items())
    values.update(zip(names, positional))
    values.update((k, v) for k, v in named.items() if k in code.co_varnames)
    return values


def _environment(func: types.FunctionType, values: dict[str, Value]) -> Env:
    code = current_code(func.__code__)  # a changed one has names of its own
    cells = dict(zip(func.__code__.co_freevars, func.__closure__ or ()))
    found = {**values}
    for name, cell in cells.items():
        try:
            found[name] = known(cell.cell_contents)
        except ValueError:
            found[name] = UNKNOWN
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *cells}
    is_generator = bool(code.co_flags & _GENERATOR)
    arguments = code.co_varnames[: code.co_argcount]
    return Env(func.__globals__, local, found, cells, arguments, is_generator=is_generator)


def _fingerprint(value: Value) -> tuple[Any, ...]:
    """Tensors and plain values of one type are equivalent for an analysis."""
    if not value.is_known:
        return (value.kind, value.is_shared)
    obj = value.obj
    if obj is None or isinstance(obj, (Tensor, int, float, str, bytes)):
        return (type(obj),)
    return (id(obj), value.is_shared)

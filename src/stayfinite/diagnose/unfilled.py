"""Reads a module's source to see whether allocated memory is ever filled.

`torch.empty` returns uninitialized memory. The values do not show whether it was written later, but the source does: which
memory is allocated, filled, or partly filled.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ..parsing import dotted

__all__ = ["Filling", "filling_of"]

_FRESH = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "empty_permuted",
}
_FRESH_TYPES = {
    "Tensor",
    "FloatTensor",
    "DoubleTensor",
    "HalfTensor",
    "BFloat16Tensor",
    "UninitializedParameter",
}
_DEPTH = 3


@dataclass(frozen=True)
class Filling:
    """The result of reading the source."""

    state: str
    """unfilled | partly | covered | filled | unknown; covered: some line fills the memory"""
    line: int | None = None
    source: str | None = None
    is_indirect: bool = False
    """Whether the attribute is not allocated here, but other memory in the file is not filled."""


@dataclass
class _Events:
    fresh: int | None = None
    is_filled: bool = False
    is_partly: bool = False
    is_made: bool = False


@dataclass
class _Scope:
    """The state of one function: its names of allocated memory."""

    names: dict[str, _Events] = field(default_factory=dict)


def filling_of(text: str, attribute: str) -> Filling:
    """Read what the source does with the parameter or buffer `attribute`.

    >>> filling_of("class A:\\n def __init__(self):\\n  self.w = Parameter(torch.empty(3))", "w").state
    'unfilled'
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return Filling("unknown")
    reader = _Reader(tree)
    total = _Events()
    elsewhere: _Events | None = None
    for function in reader.functions:
        for key, events in reader.read(function).names.items():
            if events.fresh is not None and not events.is_filled:
                elsewhere = elsewhere or events
            if key.rpartition(".")[2] != attribute or "." not in key:
                continue
            total.is_made = total.is_made or events.is_made
            total.fresh = total.fresh if total.fresh is not None else events.fresh
            total.is_filled = total.is_filled or events.is_filled
            total.is_partly = total.is_partly or events.is_partly
    lines = text.splitlines()
    if total.fresh is None:
        if elsewhere is None or elsewhere.fresh is None:
            return Filling("filled" if total.is_made else "unknown")
        state = "partly" if elsewhere.is_partly else "unfilled"
        return Filling(state, elsewhere.fresh, lines[elsewhere.fresh - 1].strip(), is_indirect=True)
    state = "covered" if total.is_filled else "partly" if total.is_partly else "unfilled"
    return Filling(state, total.fresh, lines[total.fresh - 1].strip())


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        self._by_name = {f.name: f for f in self.functions}
        self._returns: dict[str, tuple[int, bool] | None] = {}

    def read(self, function: ast.FunctionDef, depth: int = 0) -> _Scope:
        scope = _Scope()
        for statement in _in_order(function.body):
            self._statement(scope, statement, depth)
        return scope

    def _statement(self, scope: _Scope, node: ast.stmt, depth: int) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._assign(scope, target, node.value, depth)
        for call in _calls(node):
            self._call(scope, call, depth)

    def _assign(self, scope: _Scope, target: ast.expr, value: ast.expr, depth: int) -> None:
        if isinstance(target, ast.Subscript):
            events = scope.names.get(dotted(target.value))
            if events is not None:
                whole = _is_whole(target.slice)
                events.is_filled = events.is_filled or whole
                events.is_partly = events.is_partly or not whole
            elif dotted(target.value).startswith("self."):
                scope.names[dotted(target.value)] = _Events(
                    is_filled=_is_whole(target.slice), is_partly=not _is_whole(target.slice)
                )
            return
        key = dotted(target)
        if not key:
            return
        fresh = self._fresh(scope, value, depth)
        if fresh is None:
            scope.names[key] = _Events(is_made=True, is_filled="." in key)
        else:
            scope.names[key] = _Events(fresh=fresh[0], is_partly=fresh[1], is_made=True)

    def _call(self, scope: _Scope, call: ast.Call, depth: int) -> None:
        if not isinstance(call.func, ast.Attribute):
            return
        name = call.func.attr
        if name in ("register_buffer", "register_parameter") and len(call.args) > 1:
            first = call.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self._assign(scope, _attribute(first.value), call.args[1], depth)
            return
        if not name.endswith("_") or name.startswith("_"):
            return
        for written in (call.func.value, *call.args[:1]):
            is_part = isinstance(written, ast.Subscript) and not _is_whole(written.slice)
            base = written.value if isinstance(written, ast.Subscript) else written
            key = dotted(base).removesuffix(".data")
            if not key or key in ("init", "nn.init", "torch.nn.init"):
                continue
            events = scope.names.setdefault(key, _Events())
            events.is_partly = events.is_partly or is_part
            events.is_filled = events.is_filled or not is_part

    def _fresh(self, scope: _Scope, value: ast.expr, depth: int) -> tuple[int, bool] | None:
        """(line, whether it is partly filled) if this expression contains uninitialized memory."""
        if isinstance(value, ast.Call):
            name = _called(value)
            if name.endswith("_") and not name.startswith("_"):
                return None  # nn.init.zeros_(torch.empty(3)) is filled
            if name in _FRESH or (name in _FRESH_TYPES and not _has_values(value)):
                return value.lineno, False
            made = self._made_by(name, depth)
            if made is not None:
                return made
        known = scope.names.get(dotted(value))
        if known is not None and known.fresh is not None and not known.is_filled:
            return known.fresh, known.is_partly
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.keyword):
                child = child.value
            if isinstance(child, ast.expr):
                found = self._fresh(scope, child, depth)
                if found is not None:
                    return found
        return None

    def _made_by(self, name: str, depth: int) -> tuple[int, bool] | None:
        function = self._by_name.get(name)
        if function is None or depth >= _DEPTH:
            return None
        if name not in self._returns:
            self._returns[name] = None
            scope = self.read(function, depth + 1)
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    found = self._fresh(scope, node.value, depth + 1)
                    self._returns[name] = self._returns[name] or found
        return self._returns[name]


def _in_order(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements in order, including those of blocks."""
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            continue
        found.append(statement)
        for name in ("body", "orelse", "finalbody"):
            found += _in_order(getattr(statement, name, []))
    return found


def _calls(node: ast.stmt) -> list[ast.Call]:
    """The calls in a statement itself, not in its blocks."""
    if isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.Try)):
        return []
    return [c for c in ast.walk(node) if isinstance(c, ast.Call)]


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _attribute(name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Store())


def _has_values(call: ast.Call) -> bool:
    """`torch.Tensor([1, 2])` has values, `torch.Tensor(3, 4)` is uninitialized."""
    return any(isinstance(a, (ast.List, ast.Tuple, ast.ListComp)) for a in call.args)


def _is_whole(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(p, ast.Slice) and p.lower is None and p.upper is None and p.step is None)
        or (isinstance(p, ast.Constant) and p.value is Ellipsis)
        for p in parts
    )

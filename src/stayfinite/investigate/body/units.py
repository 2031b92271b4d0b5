"""A body as a tree of statements with what each reads and writes."""

from __future__ import annotations

import ast
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from .access import Access, CallJudge, Reader
from .values import FRESH, UNKNOWN, Env, Value, element_of

__all__ = ["EXCHANGED", "Unit", "build_units", "flat"]

EXCHANGED = "torch.distributed is used after the backward"

_CHANGED_IN_PLACE = (Tensor, np.ndarray, list, set, deque, dict, bytearray)
_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_PLAIN = (bool, int, float, str, type(None))
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
}  # fmt: skip
_THROUGH = {"enumerate", "reversed", "sorted", "list", "tuple", "zip", "tqdm"}


@dataclass(eq=False)
class Unit:
    """A simple statement, or the head of a compound one with its blocks."""

    node: ast.stmt
    access: Access
    parent: Unit | None
    loops: tuple[Unit, ...]
    """The inner loops around it, innermost last."""
    position: int = 0
    blocks: dict[str, list[Unit]] = field(default_factory=dict)
    result: Value = UNKNOWN
    """Of a `return`: what it gives."""
    is_dead: bool = False
    """In a branch that is not taken, as the setting stands that decides it (`if self.use_amp`)."""

    @property
    def is_loop(self) -> bool:
        return isinstance(self.node, (ast.For, ast.While, ast.AsyncFor))

    @property
    def repeated_in(self) -> set[Unit]:
        """The loops that run it several times; the condition of a `while` belongs to its loop."""
        return {*self.loops, self} if isinstance(self.node, ast.While) else set(self.loops)

    @property
    def is_leaving(self) -> bool:
        return isinstance(self.node, _LEAVING)

    @property
    def ancestors(self) -> Iterator[Unit]:
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


def flat(units: list[Unit]) -> Iterator[Unit]:
    """All of them, in source order."""
    for unit in units:
        yield unit
        for block in unit.blocks.values():
            yield from flat(block)


def build_units(
    statements: list[ast.stmt], env: Env, judge: CallJudge, is_over: bool = False
) -> list[Unit]:
    """The statements of a body with their effects, in order; `is_over`: they come after its step.

    What the processes exchange after a backward are gradients and records, which a replay leaves as they are.
    """
    units = _Builder(env, judge).block(statements, None, ())
    for position, unit in enumerate(flat(units)):
        unit.position = position
        access = unit.access
        if is_over and access.is_exchanging and not access.is_training:
            access.outside = access.outside or EXCHANGED
        is_over |= access.is_backward
    return units


class _Builder:
    def __init__(self, env: Env, judge: CallJudge) -> None:
        self.env = env
        self.judge = judge
        self.is_dead = False

    def block(
        self, statements: list[ast.stmt], parent: Unit | None, loops: tuple[Unit, ...]
    ) -> list[Unit]:
        return [self._unit(s, parent, loops) for s in statements]

    def _unit(self, node: ast.stmt, parent: Unit | None, loops: tuple[Unit, ...]) -> Unit:
        reader = Reader(self.env, self.judge)
        unit = Unit(node, reader.access, parent, loops, is_dead=self.is_dead)
        dead = _dead_block(node, reader)
        head = getattr(self, f"_{type(node).__name__}", None)
        if head is None:
            reader.read(*ast.iter_child_nodes(node))
        else:
            head(node, reader, unit)
        inner = (*loops, unit) if unit.is_loop else loops
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list) and not _is_definition(node):
                was_dead, self.is_dead = self.is_dead, self.is_dead or name == dead
                unit.blocks[name] = self.block(getattr(node, name), unit, inner)
                self.is_dead = was_dead
            if name == "body" and isinstance(node, ast.Try):
                self._handlers(node, unit, loops)
        return unit

    def _handlers(self, node: ast.Try, unit: Unit, loops: tuple[Unit, ...]) -> None:
        for index, handler in enumerate(node.handlers):
            if handler.name:
                self.env.values[handler.name] = FRESH
            unit.blocks[f"handler{index}"] = self.block(handler.body, unit, loops)

    def _Assign(self, node: ast.Assign, reader: Reader, unit: Unit) -> None:
        reader.read(node.value)
        if isinstance(node.value, (ast.Tuple, ast.List)):
            for target in node.targets:
                self._parts(target, node.value, reader)
            return
        for target in node.targets:
            reader.store(target, reader.value(node.value))

    def _parts(self, target: ast.expr, value: ast.Tuple | ast.List, reader: Reader) -> None:
        """`a, b = x, y`: pair the elements."""
        if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == len(value.elts):
            for part, given in zip(target.elts, value.elts):
                reader.store(part, reader.value(given))
        else:
            reader.store(target, FRESH)

    def _AnnAssign(self, node: ast.AnnAssign, reader: Reader, unit: Unit) -> None:
        if node.value is not None:
            reader.read(node.value)
            reader.store(node.target, reader.value(node.value))

    def _AugAssign(self, node: ast.AugAssign, reader: Reader, unit: Unit) -> None:
        before = reader.value(node.target)
        if reader.is_in_place(node.target):
            reader.access.in_place.add(self.env.path(node.target) or ())
        path = self.env.path(node.target)
        reader.read(node.value)
        reader.store(node.target, before if isinstance(node.target, ast.Name) else FRESH)
        if path is None:
            return
        reader.access.reads.add(path)
        if "grad" in path[1:]:
            reader.access.mutates.add(("<gradients>",))
        is_name = isinstance(node.target, ast.Name)
        if is_name and (not before.is_known or isinstance(before.obj, _CHANGED_IN_PLACE)):
            if before.is_shared:
                reader.access.outside = "it writes into an object that is shared"
            if before.kind != "fresh":
                reader.access.mutates.add(path)

    def _Delete(self, node: ast.Delete, reader: Reader, unit: Unit) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                reader.access.binds.add((self.env.root(target.id),))
            else:
                reader.store(target, FRESH)

    def _Return(self, node: ast.Return, reader: Reader, unit: Unit) -> None:
        reader.read(node.value)
        unit.result = FRESH if node.value is None else reader.value(node.value)

    def _Import(self, node: ast.Import, reader: Reader, unit: Unit) -> None:
        for alias in node.names:
            reader.access.binds.add((self.env.root(alias.asname or alias.name.split(".")[0]),))

    def _ImportFrom(self, node: ast.ImportFrom, reader: Reader, unit: Unit) -> None:
        for alias in node.names:
            reader.access.binds.add((self.env.root(alias.asname or alias.name),))

    def _FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, reader: Reader, unit: Unit
    ) -> None:
        reader.read(*node.decorator_list, *node.args.defaults, *node.args.kw_defaults)
        self._definition(
            node, reader, {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        )

    def _AsyncFunctionDef(self, node: ast.AsyncFunctionDef, reader: Reader, unit: Unit) -> None:
        self._FunctionDef(node, reader, unit)

    def _ClassDef(self, node: ast.ClassDef, reader: Reader, unit: Unit) -> None:
        reader.read(*node.decorator_list, *node.bases, *(k.value for k in node.keywords))
        self._definition(node, reader, set())

    def _definition(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
        reader: Reader,
        own: set[str],
    ) -> None:
        """A nested function reads what its body reads; its calls count if they are known."""
        names = [n for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name)]
        own = own | {n.id for n in names if isinstance(n.ctx, ast.Store)}
        for name in names:
            if name.id not in own:
                reader.access.reads.add((self.env.root(name.id),))
        if not self.env.is_home:
            self._judge_inside(node, reader, own)
        reader.access.binds.add((self.env.root(node.name),))
        if not self.env.is_home:
            self.env.values[node.name] = FRESH

    def _judge_inside(self, node: ast.stmt, reader: Reader, own: set[str]) -> None:
        kept = dict(self.env.values)
        self.env.values.update(dict.fromkeys(own, UNKNOWN))
        for call in [n for n in ast.walk(node) if isinstance(n, ast.Call)]:
            verdict = self.judge.call(call, self.env)
            reader.access.outside = reader.access.outside or verdict.outside
            reader.access.needs_protection |= verdict.needs_protection
            reader.access.is_exchanging |= verdict.is_exchanging
        self.env.values = kept

    def _If(self, node: ast.If, reader: Reader, unit: Unit) -> None:
        reader.read(node.test)

    def _While(self, node: ast.While, reader: Reader, unit: Unit) -> None:
        reader.read(node.test)

    def _Try(self, node: ast.Try, reader: Reader, unit: Unit) -> None:
        for handler in node.handlers:
            reader.read(handler.type)

    def _With(self, node: ast.With | ast.AsyncWith, reader: Reader, unit: Unit) -> None:
        for item in node.items:
            reader.read(item.context_expr)
            for verdict in self.judge.context(reader.value(item.context_expr)):
                reader.access.outside = reader.access.outside or verdict.outside
            if item.optional_vars is not None:
                reader.store(item.optional_vars, reader.value(item.context_expr))

    def _AsyncWith(self, node: ast.AsyncWith, reader: Reader, unit: Unit) -> None:
        self._With(node, reader, unit)
        reader.access.outside = reader.access.outside or "it waits for something"

    def _For(self, node: ast.For | ast.AsyncFor, reader: Reader, unit: Unit) -> None:
        reader.read(node.iter)
        source = reader.value(node.iter)
        reader.access.outside = reader.access.outside or self.judge.iteration(source)
        self._store_elements(node.target, node.iter, reader)

    def _AsyncFor(self, node: ast.AsyncFor, reader: Reader, unit: Unit) -> None:
        self._For(node, reader, unit)
        reader.access.outside = reader.access.outside or "it waits for something"

    def _store_elements(self, target: ast.expr, source: ast.expr, reader: Reader) -> None:
        """The values of the loop variable, also through `enumerate`, `zip` and `.items()`."""
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.args:
            name, parts = source.func.id, getattr(target, "elts", [])
            if name == "enumerate" and len(parts) == 2:
                reader.store(parts[0], FRESH)
                return self._store_elements(parts[1], source.args[0], reader)
            if name == "zip" and len(parts) == len(source.args):
                for part, inner in zip(parts, source.args):
                    self._store_elements(part, inner, reader)
                return None
            if name in _THROUGH - {"enumerate", "zip"}:
                return self._store_elements(target, source.args[0], reader)
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
            owner = reader.value(source.func.value)
            if source.func.attr in ("values", "items") and owner.is_known:
                value = element_of(owner)
                parts = getattr(target, "elts", [])
                if source.func.attr == "values" or len(parts) != 2:
                    return reader.store(target, value)
                reader.store(parts[0], FRESH)
                return reader.store(parts[1], value)
        return reader.store(target, element_of(reader.value(source)))


def _dead_block(node: ast.stmt, reader: Reader) -> str | None:
    """The branch of an `if` that its condition does not take, where that is known."""
    is_true = _truth(node.test, reader) if isinstance(node, ast.If) else None
    return None if is_true is None else "orelse" if is_true else "body"


def _truth(node: ast.expr, reader: Reader) -> bool | None:
    """Of a setting that is there already, and of a few of them put together; None where it is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, reader)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        parts = [_truth(v, reader) for v in node.values]
        decides = isinstance(node.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _setting(node.left, reader), _setting(node.comparators[0], reader)
        compare = _COMPARED.get(type(node.ops[0]))
        if left and right and compare is not None:
            with contextlib.suppress(TypeError):
                return compare(left[0], right[0])
        return None
    found = _setting(node, reader)
    return bool(found[0]) if found else None


def _setting(node: ast.expr, reader: Reader) -> tuple[object] | None:
    if isinstance(node, ast.Constant):
        return (node.value,)
    value = reader.value(node) if isinstance(node, (ast.Name, ast.Attribute)) else UNKNOWN
    is_plain = value.is_known and not value.others and type(value.obj) in _PLAIN
    return (value.obj,) if is_plain else None


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))

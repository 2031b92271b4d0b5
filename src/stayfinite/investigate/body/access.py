"""Analyzes which variables a statement reads and writes, and whether it has side effects."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from .values import FRESH, UNKNOWN, Env, Path, Value, attribute_of, element_of, item_of

__all__ = ["GRADIENTS", "RANDOM", "Access", "CallJudge", "Reader", "Verdict"]

RANDOM: Path = ("<random>",)
GRADIENTS: Path = ("<gradients>",)


@dataclass
class Verdict:
    """The effects of one call."""

    outside: str | None = None
    """The reason why it must not be repeated; None if it can be."""
    is_training: bool = False
    is_backward: bool = False
    is_step: bool = False
    optimizers: tuple[object, ...] = ()
    """The optimizers that it steps."""
    is_computing: bool = False
    """Whether it calls a function or a module, and not only a method of an existing tensor."""
    is_exchanging: bool = False
    """Whether all processes have to make it together."""
    needs_protection: bool = False
    """Whether the function writes to something that only a copy of the function protects."""
    reads: set[Path] = field(default_factory=set)
    mutates: set[Path] = field(default_factory=set)
    replaces: set[Path] = field(default_factory=set)
    """Those of `mutates` that get a new value which does not depend on the one before: twice is as good as once."""
    in_place: set[Path] = field(default_factory=set)
    result: Value = FRESH
    is_analyzed: bool = False
    """Whether `reads` lists everything that the result depends on, including the arguments."""


class CallJudge(Protocol):
    def call(self, node: ast.Call, env: Env) -> Verdict: ...

    def iteration(self, value: Value) -> str | None: ...

    def attribute(self, owner: Value, node: ast.Attribute | ast.Subscript) -> Verdict | None: ...

    def context(self, manager: Value) -> list[Verdict]: ...


@dataclass
class Access:
    """What a statement, or the head of a compound one, does to the variables."""

    reads: set[Path] = field(default_factory=set)
    passes: set[Path] = field(default_factory=set)
    """Variables passed to a function whose result does not depend on them."""
    owners: set[Path] = field(default_factory=set)
    """Objects that are read only to assign to an attribute or an item of them."""
    in_place: set[Path] = field(default_factory=set)
    """Tensors of the user's objects whose contents are changed; a copy of the object shares them."""
    binds: set[Path] = field(default_factory=set)
    mutates: set[Path] = field(default_factory=set)
    replaces: set[Path] = field(default_factory=set)
    """Those of `mutates` that a called function replaces as a whole."""
    outside: str | None = None
    is_training: bool = False
    is_backward: bool = False
    is_step: bool = False
    optimizers: tuple[object, ...] = ()
    is_computing: bool = False
    is_exchanging: bool = False
    needs_protection: bool = False

    @property
    def writes(self) -> set[Path]:
        return self.binds | self.mutates

    def add(self, verdict: Verdict) -> None:
        self.outside = self.outside or verdict.outside
        self.is_training |= verdict.is_training
        self.is_backward |= verdict.is_backward
        self.is_step |= verdict.is_step
        self.optimizers += verdict.optimizers
        self.is_computing |= verdict.is_computing
        self.is_exchanging |= verdict.is_exchanging
        self.needs_protection |= verdict.needs_protection
        self.reads |= verdict.reads
        self.mutates |= verdict.mutates
        self.replaces |= verdict.replaces
        self.in_place |= verdict.in_place


class Reader(ast.NodeVisitor):
    """Collects the accesses of the expressions that it visits."""

    def __init__(self, env: Env, judge: CallJudge) -> None:
        self.env = env
        self.judge = judge
        self.access = Access()
        self._hidden: list[set[str]] = []
        """Names in comprehensions and lambdas, which are not variables of the function."""

    def value(self, node: ast.expr) -> Value:
        """The value of the expression."""
        if isinstance(node, ast.Name):
            return UNKNOWN if self._is_hidden(node.id) else self.env.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return attribute_of(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return item_of(self.value(node.value), node.slice)
        if isinstance(node, ast.Call):
            return self.judge.call(node, self.env).result
        if isinstance(node, (ast.NamedExpr, ast.Starred)):
            return self.value(node.value)
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            return self._either(node)
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            return UNKNOWN
        return FRESH

    def _either(self, node: ast.IfExp | ast.BoolOp) -> Value:
        parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        values = [self.value(p) for p in parts]
        first = values[0]
        if all(v.kind == first.kind and v.obj is first.obj for v in values):
            return first
        unknown = [v for v in values if v.kind == "unknown"]
        if unknown:
            return unknown[0]
        found = [v for v in values if v.is_known and v.obj is not None]
        return found[0] if found else FRESH

    def read(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and not self._is_hidden(node.id):
            self.access.reads.add((self.env.root(node.id),))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._note_hidden_code(node)
        self._read_path(node)
        if node.attr == "grad":
            self.access.reads.add(GRADIENTS)

    def _note_hidden_code(self, node: ast.Attribute | ast.Subscript) -> None:
        """Reading a property, or `__getitem__`, runs a function."""
        verdict = self.judge.attribute(self.value(node.value), node)
        if verdict is not None:
            self.access.outside = self.access.outside or verdict.outside

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._note_hidden_code(node)
        self._read_path(node)
        self.visit(node.slice)

    def _read_path(self, node: ast.Attribute | ast.Subscript) -> None:
        root = _root_name(node)
        path = self.env.path(node)
        if path is None or root is None or self._is_hidden(root):
            self.visit(node.value)
            return
        self.access.reads.add(path)
        inner: ast.expr = node.value
        while isinstance(inner, (ast.Attribute, ast.Subscript)):
            self._note_hidden_code(inner)
            if isinstance(inner, ast.Subscript):
                self.visit(inner.slice)
            inner = inner.value

    def visit_Call(self, node: ast.Call) -> None:
        verdict = self.judge.call(node, self.env)
        self.access.add(verdict)
        self._read_callee(node.func, verdict)
        for part in (*node.args, *(k.value for k in node.keywords)):
            path = self.env.path(part) if verdict.is_analyzed else None
            if path is None:
                self.visit(part)
            else:
                self.access.passes.add(path)

    def _read_callee(self, func: ast.expr, verdict: Verdict) -> None:
        """`self.model(x)` depends only on that attribute; a method that is not analyzed depends on its object."""
        is_whole = isinstance(func, ast.Attribute) and not verdict.is_analyzed
        if is_whole and isinstance(self.value(func).obj, types.MethodType):
            assert isinstance(func, ast.Attribute)
            self.visit(func.value)
        self.visit(func)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.access.binds.add((self.env.root(node.target.id),))
        self.env.values[node.target.id] = self._bound(node.target.id, self.value(node.value))

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.read(*node.args.defaults, *node.args.kw_defaults)
        self._visit_hiding(_argument_names(node.args), [node.body])

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node.generators, node.elt)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node.generators, node.elt)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node.generators, node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, node.key, node.value)

    def _comprehension(self, generators: list[ast.comprehension], *elements: ast.expr) -> None:
        shadows: dict[str, Value | None] = {}
        for part in generators:
            self.visit(part.iter)
            source = self.value(part.iter)
            self.access.outside = self.access.outside or self.judge.iteration(source)
            for name in _names(part.target):
                shadows.setdefault(name, self.env.values.get(name))
                self.env.values[name] = UNKNOWN
            if isinstance(part.target, ast.Name):
                self.env.values[part.target.id] = element_of(source)
        self._visit_hiding(
            set(shadows), [*elements, *(c for g in generators for c in g.ifs)], keep_values=True
        )
        for name, value in shadows.items():
            if value is None:
                self.env.values.pop(name, None)
            else:
                self.env.values[name] = value

    def visit_Await(self, node: ast.Await) -> None:
        self.access.outside = self.access.outside or "it waits for something"
        self.visit(node.value)

    def visit_Yield(self, node: ast.Yield) -> None:
        if not self.env.is_generator:
            self.access.outside = self.access.outside or "it hands a value out"
        self.read(node.value)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        if not self.env.is_generator:
            self.access.outside = self.access.outside or "it hands values out"
        self.visit(node.value)

    def _visit_hiding(
        self, names: set[str], nodes: Iterable[ast.AST], keep_values: bool = False
    ) -> None:
        kept = {n: self.env.values[n] for n in names if n in self.env.values}
        if not keep_values:
            self.env.values.update(dict.fromkeys(names, UNKNOWN))
        self._hidden.append(set() if keep_values else names)
        before = set(self.access.reads)
        self.read(*nodes)
        self._hidden.pop()
        own = {self.env.root(n) for n in names}
        self.access.reads = {p for p in self.access.reads if p in before or p[0] not in own}
        if not keep_values:
            for name in names:
                self.env.values.pop(name, None)
            self.env.values.update(kept)

    def _is_hidden(self, name: str) -> bool:
        return any(name in names for names in self._hidden)

    def store(self, target: ast.expr, value: Value) -> None:
        """Note that the statement assigns to `target`."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self.store(part, element_of(value) if value.is_known else value)
        elif isinstance(target, ast.Starred):
            self.store(target.value, FRESH)
        elif isinstance(target, ast.Name):
            self.access.binds.add((self.env.root(target.id),))
            self.env.values[target.id] = self._bound(target.id, value)
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            self._store_into(target)

    def is_in_place(self, node: ast.expr) -> bool:
        """Whether it is a tensor of an object or a module-level variable, and not a buffer of a module."""
        if isinstance(node, ast.Attribute) and isinstance(self.value(node.value).obj, nn.Module):
            return False
        is_local = isinstance(node, ast.Name) and "@" not in self.env.root(node.id)
        return not is_local and isinstance(self.value(node).obj, Tensor)

    def _bound(self, name: str, value: Value) -> Value:
        """The current value of the variable shows only its type."""
        before = self.env.values.get(name)
        is_better = self.env.is_home and value.kind != "known" and not value.is_shared
        return before if is_better and before is not None and before.is_known else value

    def _store_into(self, target: ast.Attribute | ast.Subscript) -> None:
        owner = self.value(target.value)
        if owner.is_shared:
            self.access.outside = self.access.outside or "it writes into an object that is shared"
        path = self.env.path(target)
        before = set(self.access.reads)
        self.read(target.value)
        self.access.owners |= self.access.reads - before
        if isinstance(target, ast.Subscript):
            self.visit(target.slice)
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            self.access.mutates.add(GRADIENTS)
        if path is None:
            return
        is_exact = isinstance(target, ast.Attribute) or _is_key(target.slice, owner)
        if isinstance(target, ast.Subscript) and not is_exact:
            path = self.env.path(target.value)
            assert path is not None
            if self.is_in_place(target.value):
                self.access.in_place.add(path)
        (self.access.binds if is_exact else self.access.mutates).add(path)
        if not is_exact:
            self.access.reads.add(path)


def _root_name(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_key(index: ast.expr, owner: Value) -> bool:
    """Whether this writes to an entry of a dict or a list; writing to a part of a tensor changes the tensor."""
    if not isinstance(index, ast.Constant):
        return False
    return isinstance(index.value, str) or isinstance(owner.obj, (dict, list))


def _names(target: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]


def _argument_names(arguments: ast.arguments) -> set[str]:
    return {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}

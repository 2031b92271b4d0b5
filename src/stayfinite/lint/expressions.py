"""Evaluates expressions to facts, and shows each operation to the rules."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any, Protocol

from . import values as v
from .context import Context
from .module import ClassFacts, Function, Module
from .names import dotted, facts_of_name
from .operation import Operation
from .transfer import result
from .values import UNKNOWN, Value, join

__all__ = ["Expressions", "Reader"]

_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
_SIZES = {"shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "training"}
_INFINITE = {"inf": v.INF, "Inf": v.INF, "infty": v.INF, "nan": v.NAN, "NaN": v.NAN}


class Reader(Protocol):
    """The parts of the file that expressions need."""

    def returns(self, function: Function) -> Value: ...

    def attributes(self, owner: ClassFacts) -> dict[str, Value]: ...

    def read_nested(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        owner: ClassFacts | None,
        env: dict[str, Value],
        outer: Context,
    ) -> None: ...

    def model_output(self) -> Value: ...

    def apply_rules(self, op: Operation, context: Context) -> None: ...


class Expressions:
    """The variables of one scope, and the facts of expressions over them."""

    def __init__(self, module: Module, context: Context, reader: Reader) -> None:
        self.module = module
        self.context = context
        self.reader = reader
        self.env: dict[str, Value] = {}

    def eval(self, node: ast.expr) -> Value:
        handler = _HANDLERS.get(type(node))
        return handler(self, node) if handler is not None else self._anything(node)

    def offer(self, op: Operation) -> None:
        """Show an operation to the rules."""
        self.reader.apply_rules(op, self.context)

    def call(self, node: ast.Call) -> Value:
        raise NotImplementedError

    def bind(self, target: ast.expr, value: Value) -> None:
        raise NotImplementedError

    def _anything(self, node: ast.AST) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
            elif isinstance(child, (ast.comprehension, ast.keyword)):
                self._anything(child)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Value:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return Value(v.FIXED)
        facts = v.PY | v.FIXED
        if 0 < value < 6e-8:
            facts |= v.TINY
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        return Value(facts, node, number=number)

    def _name(self, node: ast.Name) -> Value:
        found = self.env.get(node.id) or self.module.constants.get(node.id)
        if found is not None:
            return found
        full = self.module.aliases.get(node.id, "")
        if full:
            return Value(_INFINITE.get(full.rpartition(".")[2], 0))
        facts = facts_of_name(node.id)
        return Value(facts, node) if facts else UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Value:
        name = dotted(node)
        found = self.env.get(name) if name else None
        if found is not None:
            return found
        attr = node.attr
        if attr == "min" and _is_limits(node.value):
            return Value(v.PY | v.FIXED | v.LOWEST)
        if attr in _INFINITE and self.module.resolve(node):
            return Value(_INFINITE[attr] | v.PY | v.FIXED)
        home = self.eval(node.value)
        if attr in _SIZES:
            return Value(v.PY | v.FIXED)
        if attr in ("T", "mT", "data", "grad", "values"):
            return Value(home.facts | (v.NOGRAD if attr in ("data", "grad") else 0), node)
        facts = facts_of_name(attr)
        return Value(facts, node) if facts else UNKNOWN

    def _subscript(self, node: ast.Subscript) -> Value:
        home, index = self.eval(node.value), self.eval(node.slice)
        if (
            home.items
            and index.number is not None
            and -len(home.items) <= index.number < len(home.items)
        ):
            return home.items[int(index.number)]
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return Value(facts_of_name(node.slice.value), node)
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return Value(v.PY | v.FIXED)
        facts = home.facts
        picks = (index, *index.items)
        if any(p.has(v.MASK) and not p.has(v.PY) for p in picks) and not home.has(v.PY):
            facts |= v.SELECTED | (v.NAMED if any(p.has(v.NAMED) for p in picks) else 0)
            self.offer(Operation("select", node, [node.value, node.slice], [home, index]))
        return Value(facts, node if facts else None)

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.eval(node.operand)
        if isinstance(node.op, ast.USub):
            made = result(Operation("neg", node, [node.operand], [value]))
            if value.number is not None:
                return Value(made.facts | v.PY | v.FIXED, node, number=-value.number)
            return made
        if isinstance(node.op, ast.Invert):
            return Value(v.MASK | v.NOGRAD | (value.facts & v.NAMED), node)
        return Value(v.MASK | v.PY) if isinstance(node.op, ast.Not) else value

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        name = _OPERATORS.get(type(node.op))
        if name is None:
            if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
                return Value(v.MASK | v.NOGRAD, node)
            return Value(left.facts & right.facts & v.PY)
        op = Operation(name, node, [node.left, node.right], [left, right])
        self.offer(op)
        made = result(op)
        if left.number is not None and right.number is not None:
            made.number = _computed(name, left.number, right.number)
        return made

    def _compare(self, node: ast.Compare) -> Value:
        parts = [node.left, *node.comparators]
        values = [self.eval(part) for part in parts]
        self.offer(Operation("<compare>", node, parts, values))
        return Value(v.MASK | v.NOGRAD, node)

    def _bool(self, node: ast.BoolOp) -> Value:
        found = [self.eval(part) for part in node.values]
        return join(found[0], found[-1])

    def _ternary(self, node: ast.IfExp) -> Value:
        self.eval(node.test)
        return join(self.eval(node.body), self.eval(node.orelse))

    def _sequence(self, node: ast.Tuple | ast.List) -> Value:
        items = tuple(self.eval(part) for part in node.elts)
        every = -1
        for item in items:
            every &= item.facts
        return Value(every & (v.PY | v.FIXED) if items else v.FIXED, node, items)

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target, value)
        return value

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        before = self.env
        self.env = dict(before)
        for generator in node.generators:
            items = self.eval(generator.iter)
            self.bind(generator.target, Value(items.facts & ~(v.PY | v.SELECTED | v.COUNT)))
            for test in generator.ifs:
                self.eval(test)
        made = self.eval(node.elt)
        self.env = before
        return Value(made.facts & ~v.PY, node, (made,))

    def _lambda(self, node: ast.Lambda) -> Value:
        before = self.env
        self.env = {**before, **{a.arg: Value(facts_of_name(a.arg)) for a in node.args.args}}
        self.eval(node.body)
        self.env = before
        return UNKNOWN


def _is_limits(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).endswith("finfo")


def _computed(name: str, a: float, b: float) -> float | None:
    try:
        if name == "add":
            return a + b
        if name == "sub":
            return a - b
        if name == "mul":
            return a * b
        return a / b if name == "div" else float(a**b) if name == "pow" else None
    except (ArithmeticError, TypeError):
        return None


_HANDLERS: dict[type[ast.expr], Callable[[Expressions, Any], Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.UnaryOp: Expressions._unary,
    ast.BinOp: Expressions._binary,
    ast.Compare: Expressions._compare,
    ast.BoolOp: Expressions._bool,
    ast.IfExp: Expressions._ternary,
    ast.Tuple: Expressions._sequence,
    ast.List: Expressions._sequence,
    ast.NamedExpr: Expressions._named,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.Lambda: Expressions._lambda,
    ast.Call: lambda self, node: self.call(node),
}

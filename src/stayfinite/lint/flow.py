"""Reads a function from top to bottom, tracking what is known about its values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from . import values as v
from .calls import Calls
from .context import Context, Event
from .expressions import Reader
from .module import AnyFunction, Function, Module
from .names import dotted, facts_of_name, says_safe
from .operation import Operation
from .transfer import result
from .values import Value, join

__all__ = ["Flow"]

_NO_GRAD = {"no_grad", "inference_mode", "set_grad_enabled"}
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_LOOP_CALLS = {
    "backward": "backward",
    "manual_backward": "backward",
    "step": "step",
    "zero_grad": "zero_grad",
    "unscale_": "unscale",
    "unscale_gradients": "unscale",
    "update": "update",
    "clip_grad_norm_": "clip",
    "clip_grad_value_": "clip",
    "clip_gradients": "clip",
    "load_state_dict": "load",
    "save": "save",
    "isnan": "isnan",
    "isinf": "isinf",
    "isfinite": "isfinite",
    "nan_to_num": "nan_to_num",
    "nan_to_num_": "nan_to_num",
    "GradScaler": "make_scaler",
    "scale": "scale",
}
_ARITHMETIC = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}


class Flow(Calls):
    """One function, or the statements of a file, in order of execution."""

    def __init__(self, module: Module, context: Context, reader: Reader) -> None:
        super().__init__(module, context, reader)
        self.returned: Value | None = None
        self._loop: ast.stmt | None = None
        self._tests: tuple[ast.expr, ...] = ()
        self._nested: list[AnyFunction] = []

    def run(self, body: list[ast.stmt]) -> None:
        self._block(body)
        for node in self._nested:
            self._inner(node)

    def bind_parameters(self, function: Function) -> None:
        """The facts of the parameters from names, annotations and the calls within the file."""
        known = function.arguments or {}
        for arg in function.parameters:
            value = known.get(arg.arg)
            facts = _annotated(arg.annotation)
            if value is not None and value.facts:
                self.env[arg.arg] = value.with_facts(value.facts | facts)
            elif facts:
                self.env[arg.arg] = Value(facts)
            else:
                self.env[arg.arg] = Value(facts_of_name(arg.arg))

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.context.statement = statement
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                handler(self, statement)

    def _assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annotated_assign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.eval(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        name = _ARITHMETIC.get(type(node.op))
        left, right = self.eval(node.target), self.eval(node.value)
        if name is None:
            return
        joined = ast.BinOp(left=node.target, op=node.op, right=node.value)
        ast.copy_location(joined, node)
        op = Operation(name, joined, [node.target, node.value], [left, right])
        self.offer(op)
        self.offer(Operation("in_place", joined, op.nodes, op.args))
        if isinstance(node.target, (ast.Name, ast.Attribute)):
            self.bind(node.target, result(op))

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        value = self.eval(node.value)
        self.returned = value if self.returned is None else join(self.returned, value)

    def _expression(self, node: ast.Expr) -> None:
        value = self.eval(node.value)
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            self._registered(call)
            name = dotted(call.func.value)
            if call.func.attr.endswith("_") and name in self.env:
                self.env[name] = value

    def _registered(self, call: ast.Call) -> None:
        """`self.register_buffer("x", value)` means `self.x = value`."""
        is_buffer = isinstance(call.func, ast.Attribute) and call.func.attr == "register_buffer"
        name = call.args[0] if is_buffer and len(call.args) > 1 else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            value = self.eval(call.args[1])
            self.env[f"self.{name.value}"] = value.with_facts(value.facts & ~v.FIXED)

    def _if(self, node: ast.If) -> None:
        self.eval(node.test)
        before, tests = self.env, self._tests
        self._tests = (*tests, node.test)
        self.env = dict(before)
        self._block(node.body)
        first = None if _leaves(node.body) else self.env
        self.env = dict(before)
        self._tests = (*tests, ast.UnaryOp(op=ast.Not(), operand=node.test))
        self._block(node.orelse)
        second = None if _leaves(node.orelse) else self.env
        self._tests = tests
        self.env = _merged(first, second) if first and second else (first or second or before)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        items = self.eval(node.iter)
        self.bind(node.target, _element(items))
        self._looped(node, node.body)
        self._block(node.orelse)

    def _while(self, node: ast.While) -> None:
        self.eval(node.test)
        self._looped(node, node.body)

    def _looped(self, node: ast.stmt, body: list[ast.stmt]) -> None:
        loop, tests, before = self._loop, self._tests, dict(self.env)
        self._loop, self._tests = node, ()
        self._block(body)
        self._loop, self._tests = loop, tests
        self.env = _merged(before, self.env) if before else self.env

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        was_grad = self.context.is_grad
        for item in node.items:
            value = self.eval(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
            if _switches_gradient_off(item.context_expr):
                self.context.is_grad = False
        self._block(node.body)
        self.context.is_grad = was_grad

    def _try(self, node: ast.Try) -> None:
        self._block(node.body)
        for handler in node.handlers:
            self._block(handler.body)
        self._block(node.orelse)
        self._block(node.finalbody)

    def _assert(self, node: ast.Assert) -> None:
        self.eval(node.test)

    def _def(self, node: AnyFunction) -> None:
        self._nested.append(node)
        self.env.pop(node.name, None)

    def _class(self, node: ast.ClassDef) -> None:
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._nested.append(child)

    def _inner(self, node: AnyFunction) -> None:
        """A nested function sees the variables around it."""
        owner = self.context.function.owner if self.context.function else None
        self.reader.read_nested(node, owner, self.env, self.context)

    def offer_call(self, node: ast.Call, name: str, receiver: str) -> None:
        """Collect the calls of a training loop."""
        kind = _LOOP_CALLS.get(name)
        if kind is not None and self.context.statement is not None:
            self.context.events.append(
                Event(kind, receiver, node, self.context.statement, self._loop, self._tests)
            )

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign facts to a name."""
        if isinstance(target, (ast.Name, ast.Attribute)):
            name = dotted(target)
            if name:
                self.env[name] = _named(name, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._bind_parts(target, value)
        elif isinstance(target, ast.Subscript):
            self._written(target, value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)

    def _bind_parts(self, target: ast.Tuple | ast.List, value: Value) -> None:
        parts = target.elts
        if len(value.items) == len(parts):
            for part, item in zip(parts, value.items):
                self.bind(part, item)
            return
        for part in parts:
            self.bind(part, _element(value))

    def _written(self, target: ast.Subscript, value: Value) -> None:
        """After `x[x == 0] = 1`, x is not 0."""
        self.eval(target)
        name = dotted(target.value)
        old = self.env.get(name)
        if old is None:
            return
        facts = old.facts
        index = self.eval(target.slice)
        if index.has(v.MASK):
            facts |= v.NEGINF if value.has(v.INF) else v.SAFE
            facts &= ~(v.ZERO if not value.has(v.INF) else 0)
        elif value.has(v.INF):
            facts |= v.NEGINF
        self.env[name] = old.with_facts(facts)


def _annotated(node: ast.expr | None) -> int:
    if isinstance(node, ast.Name) and node.id in ("float", "int", "bool", "str"):
        return v.PY
    name = dotted(node) if node is not None else ""
    if name.endswith(("ndarray", "NDArray")):
        return v.NP
    return v.NOGRAD if name.endswith(("LongTensor", "BoolTensor", "IntTensor")) else 0


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], _LEAVES)


def _merged(a: dict[str, Value], b: dict[str, Value]) -> dict[str, Value]:
    out = dict(b)
    for name, value in a.items():
        other = b.get(name)
        if other is None:
            out[name] = value
        elif other is not value:
            out[name] = join(value, other)
    return out


def _element(value: Value) -> Value:
    if value.items:
        facts = -1
        for item in value.items:
            facts &= item.facts
        return Value(facts, calls=value.items[0].calls)
    return Value(value.facts & ~(v.PY | v.SELECTED | v.COUNT), value.node)


def _named(name: str, value: Value) -> Value:
    """The facts that a name suggests count if nothing else is known, and always if it contains `safe`."""
    if not value.facts:
        facts = facts_of_name(name)
        return value.with_facts(facts | v.LOCAL) if facts else value
    if says_safe(name):
        return value.with_facts(value.facts | v.SAFE)
    said = facts_of_name(name)
    extra = said & (v.LOGVAR | v.LOGPROB)
    if said & v.COUNT and value.has(v.SUM):
        extra |= v.COUNT | v.ZERO | v.NONNEG
    return value.with_facts(value.facts | extra) if extra else value


def _switches_gradient_off(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if name not in _NO_GRAD:
        return False
    first = node.args[0] if node.args else None
    return not (isinstance(first, ast.Constant) and first.value is True)


_STATEMENTS: dict[type[ast.stmt], Callable[[Flow, Any], None]] = {
    ast.Assign: Flow._assign,
    ast.AnnAssign: Flow._annotated_assign,
    ast.AugAssign: Flow._augmented,
    ast.Return: Flow._return,
    ast.Expr: Flow._expression,
    ast.If: Flow._if,
    ast.For: Flow._for,
    ast.AsyncFor: Flow._for,
    ast.While: Flow._while,
    ast.With: Flow._with,
    ast.AsyncWith: Flow._with,
    ast.Try: Flow._try,
    ast.Assert: Flow._assert,
    ast.FunctionDef: Flow._def,
    ast.AsyncFunctionDef: Flow._def,
    ast.ClassDef: Flow._class,
}

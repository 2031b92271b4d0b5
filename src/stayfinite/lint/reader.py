"""Reads a file's functions in turn, each with the arguments and results of the others."""

from __future__ import annotations

import ast

from . import values as v
from .context import Context, Hit
from .flow import Flow
from .module import AnyFunction, ClassFacts, Function, Module, called_names
from .names import dotted
from .operation import Operation
from .rules import at_end_of_file, at_end_of_function, rules_for
from .values import UNKNOWN, Value

__all__ = ["FileReader"]

_HANDED_OVER = (
    v.PROB | v.SOFTMAX | v.SIGMOID | v.SELECTED | v.COUNT | v.UNIT | v.HALF | v.BF16 | v.NEGINF
    | v.SQUARE | v.SUMSQ | v.NORM | v.COS | v.UNBOUNDED
)  # fmt: skip
"""Facts that justify reading the called function again."""
_NO_GRAD = ("no_grad", "inference_mode")


class FileReader:
    """Reads a whole file and collects the findings of the rules."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Module(tree)
        self._hits: dict[int, list[Hit]] = {}
        self._contexts: dict[int, Context] = {}
        self._model: Value | None = None

    def read(self) -> list[Hit]:
        """All findings of the file, in the order of its lines."""
        top = Context(self.module, None, self.module.tree.body)
        flow = Flow(self.module, top, self)
        flow.run([s for s in self.module.tree.body if not _is_definition(s)])
        self._finish(self.module.tree, top)
        self.module.constants = {
            k: x for k, x in flow.env.items() if x.facts or x.number is not None
        }
        functions = self._functions()
        for function in functions:
            self.returns(function)
        self._read_again(functions)
        contexts = list(self._contexts.values())
        last = [hit for rule in at_end_of_file() for hit in rule(self.module, contexts)]
        found = [hit for hits in self._hits.values() for hit in hits] + last
        once = {(h.code, _place(h)): h for h in found}
        return sorted(once.values(), key=lambda h: (_place(h), h.code))

    def _functions(self) -> list[Function]:
        methods = [m for c in self.module.classes.values() for m in c.methods.values()]
        return [*methods, *self.module.functions.values()]

    def _read_again(self, functions: list[Function]) -> None:
        changed = set()
        for function in functions:
            given = function.arguments or {}
            if any(value.has(_HANDED_OVER) for value in given.values()):
                before, function.returned = function.returned, None
                if before is None or self.returns(function).facts != before.facts:
                    changed.add(function.name)
        for function in functions if changed else ():
            if called_names(function.node) & changed:
                function.returned = None
                self.returns(function)

    def returns(self, function: Function) -> Value:
        """The facts of a function's result, computed on first use."""
        if function.is_running:
            return UNKNOWN
        if function.returned is None:
            function.is_running = True
            function.returned = self._read_function(function)
            function.is_running = False
        return function.returned

    def _read_function(self, function: Function) -> Value:
        context = Context(self.module, function, function.node.body)
        context.is_grad = not _is_without_gradient(function.node)
        flow = Flow(self.module, context, self)
        if function.owner is not None and function.name != "__init__":
            flow.env.update(self.attributes(function.owner))
        flow.bind_parameters(function)
        flow.run(function.node.body)
        if function.name == "__init__" and function.owner is not None:
            function.owner.attributes = _attributes(flow.env)
        self._finish(function.node, context)
        return flow.returned or UNKNOWN

    def attributes(self, owner: ClassFacts) -> dict[str, Value]:
        """The facts of `self.x` after the class was built."""
        if owner.attributes is None:
            owner.attributes = {}
            init = owner.methods.get("__init__")
            if init is not None:
                self.returns(init)
        return owner.attributes

    def read_nested(
        self, node: AnyFunction, owner: ClassFacts | None, env: dict[str, Value], outer: Context
    ) -> None:
        """A nested function sees the variables around it."""
        function = Function(node, node.name)
        function.owner = owner
        context = Context(self.module, function, node.body)
        context.is_grad = outer.is_grad and not _is_without_gradient(node)
        context.outer_tested = frozenset(outer.tested)
        flow = Flow(self.module, context, self)
        flow.env.update(env)
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            flow.env.pop(arg.arg, None)
        flow.run(node.body)
        self._finish(node, context)

    def model_output(self) -> Value:
        """The result of the only model of a script."""
        if self._model is None:
            self._model = UNKNOWN
            root = self.module.root_model()
            if root is not None:
                self._model = self.returns(root.methods["forward"])
        return self._model

    def apply_rules(self, op: Operation, context: Context) -> None:
        for rule in rules_for(op.name):
            rule(op, context)

    def _finish(self, node: ast.AST, context: Context) -> None:
        for rule in at_end_of_function():
            rule(context)
        self._hits[id(node)] = context.hits
        self._contexts[id(node)] = context


def _place(hit: Hit) -> tuple[int, int]:
    return getattr(hit.node, "lineno", 1), getattr(hit.node, "col_offset", 0)


def _attributes(env: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in env.items() if name.startswith("self.")}


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _is_without_gradient(node: AnyFunction) -> bool:
    names = [dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    return any(name.rpartition(".")[2] in _NO_GRAD for name in names)

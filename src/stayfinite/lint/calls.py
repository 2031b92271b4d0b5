"""Evaluates calls of torch, tensor methods, layers and functions of the same file."""

from __future__ import annotations

import ast
from typing import Any

from . import values as v
from .expressions import Expressions
from .layers import operation_of_layer
from .module import Function
from .names import dotted
from .operation import CANONICAL, Operation
from .transfer import result
from .values import UNKNOWN, Value, join

__all__ = ["Calls"]

_WITHOUT_OPERANDS = frozenset(
    [
        "log",
        "exp",
        "sqrt",
        "rsqrt",
        "sigmoid",
        "tanh",
        "relu",
        "abs",
        "square",
        "log1p",
        "log2",
        "log10",
        "acos",
    ]
)
"""Tensor methods without arguments: `logger.log(text)` is not one of them."""
_DIMENSIONS = frozenset(
    [
        "norm",
        "softmax",
        "log_softmax",
        "sum",
        "mean",
        "std",
        "var",
        "normalize",
        "logsumexp",
        "prod",
    ]
)
"""Tensor methods with a dimension argument: `block.norm(x)` is a layer."""
_PYTHON = {"len", "int", "float", "round", "range", "id", "ord", "bool", "str"}
_BUILTINS = {"max": "maximum", "min": "minimum", "abs": "abs", "sum": "sum", "pow": "pow"}
_MODELS = {"model", "net", "network", "policy", "self.model", "self.net"}


class Calls(Expressions):
    """Evaluates expressions with calls, and shows each call to the rules as an operation."""

    def offer_call(self, node: ast.Call, name: str, receiver: str) -> None:
        """Collects the calls of a training loop; overridden by the reader of statements."""

    def call(self, node: ast.Call) -> Value:
        func = node.func
        if isinstance(func, ast.Attribute):
            full = self.module.resolve(func)
            if full:
                return self._function(node, full)
            return self._method(node, func)
        if isinstance(func, ast.Name):
            return self._plain(node, func.id)
        self.eval(func)
        made = self._layer_made_here(func)
        args, values = self._operands(node)
        return self._done(made, node, node.args, args, values) if made else UNKNOWN

    def _layer_made_here(self, func: ast.expr) -> str | None:
        """For `nn.CTCLoss()(x, y)`: the operation of the layer."""
        if not isinstance(func, ast.Call):
            return None
        return operation_of_layer(self.module, func)

    def _operands(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        args = [self.eval(arg) for arg in node.args]
        return args, {k.arg or "**": self.eval(k.value) for k in node.keywords}

    def _function(self, node: ast.Call, full: str) -> Value:
        home, _, name = full.rpartition(".")
        args, values = self._operands(node)
        if self.module.is_foreign(full):
            self.offer_call(node, name, home)
            return Value(v.PY | v.NP if home == "numpy" else v.PY, node)
        self.offer_call(node, name, home)
        if not full.startswith("torch") and home in self.module.classes:
            return UNKNOWN
        layer = operation_of_layer(self.module, node)
        if layer is not None:
            self._layer(node, name, args, values)
            return Value(calls=layer, node=node)
        if name in ("finfo", "iinfo"):
            return Value(v.PY | v.FIXED)
        return self._done(CANONICAL.get(name, name), node, node.args, args, values, home)

    def _layer(
        self, node: ast.Call, name: str, args: list[Value], values: dict[str, Value]
    ) -> None:
        """Show a layer to the rules by its class, for the rules about its settings."""
        keywords = {k.arg or "**": k.value for k in node.keywords}
        self.offer(Operation(name, node, list(node.args), args, keywords, values, "torch.nn"))

    def _plain(self, node: ast.Call, name: str) -> Value:
        found = self.env.get(name)
        args, values = self._operands(node)
        if found is not None and found.calls:
            return self._done(found.calls, node, node.args, args, values)
        if name not in self.module.aliases:
            self.offer_call(node, name, "")
        function = self.module.functions.get(name)
        if function is not None and found is None:
            _remember(function, node, args, values)
            return self.reader.returns(function)
        if name == "float" and node.args and isinstance(node.args[0], ast.Constant):
            return _written_number(node.args[0].value)
        if name in _PYTHON:
            return Value(v.PY | (args[0].facts & v.FIXED if args else 0), node)
        if name in _BUILTINS:
            return self._builtin(_BUILTINS[name], node, args)
        if name in self.module.aliases:
            return self._function(node, self.module.aliases[name])
        if name in _MODELS:
            return self.reader.model_output()
        return UNKNOWN

    def _builtin(self, name: str, node: ast.Call, args: list[Value]) -> Value:
        made = result(Operation(name, node, list(node.args), args))
        is_python = all(a.has(v.PY) for a in args)
        return Value(made.facts | (v.PY if is_python else 0), node)

    def _method(self, node: ast.Call, func: ast.Attribute) -> Value:
        name = func.attr
        owned = dotted(func)
        found = self.env.get(owned)
        if found is not None and found.calls:
            args, values = self._operands(node)
            return self._done(found.calls, node, node.args, args, values)
        home_name = dotted(func.value)
        self.offer_call(node, name, home_name)
        if home_name in ("self", "cls"):
            return self._own_method(node, name)
        receiver = self.eval(func.value)
        args, values = self._operands(node)
        canonical = CANONICAL.get(name, name)
        if _is_no_tensor_method(canonical, node, args):
            return self.reader.model_output() if owned in _MODELS else UNKNOWN
        nodes = [func.value, *node.args]
        if name.endswith("_") and not name.startswith("requires_grad"):
            self.offer(Operation("in_place", node, list(nodes), [receiver, *args]))
        return self._done(canonical, node, nodes, [receiver, *args], values)

    def _own_method(self, node: ast.Call, name: str) -> Value:
        args, values = self._operands(node)
        owner = self.context.function.owner if self.context.function else None
        method = owner.methods.get(name) if owner else None
        if method is None:
            return UNKNOWN
        _remember(method, node, args, values)
        return self.reader.returns(method)

    def _done(
        self,
        name: str,
        node: ast.Call,
        nodes: list[ast.expr],
        args: list[Value],
        values: dict[str, Value],
        home: str = "",
    ) -> Value:
        keywords = {k.arg or "**": k.value for k in node.keywords}
        op = Operation(name, node, list(nodes), args, keywords, values, home)
        if not op.args and "input" in values:
            op.args, op.nodes = [values["input"]], [keywords["input"]]
        self.offer(op)
        return result(op)


def _is_no_tensor_method(name: str, node: ast.Call, args: list[Value]) -> bool:
    if name in _WITHOUT_OPERANDS:
        return bool(node.args)
    if name in _DIMENSIONS and node.args:
        first = node.args[0]
        plain = isinstance(first, (ast.Constant, ast.UnaryOp, ast.Tuple, ast.List))
        is_dim = isinstance(first, (ast.Name, ast.Attribute)) and "dim" in dotted(first).lower()
        return not (plain or is_dim or args[0].has(v.PY))
    return False


def _written_number(value: Any) -> Value:
    text = str(value).strip().lower()
    if text.lstrip("+-") in ("inf", "infinity"):
        return Value(v.INF | v.PY | v.FIXED | (v.NEGATIVE if text.startswith("-") else 0))
    if text == "nan":
        return Value(v.NAN | v.PY | v.FIXED)
    return Value(v.PY)


def _handed_over(value: Value) -> Value:
    """The facts of an argument in one call; that it is a constant holds for this call only."""
    return Value(value.facts & ~(v.FIXED | v.NOGRAD | v.SAFE), value.node, value.items)


def _remember(
    function: Function, node: ast.Call, args: list[Value], values: dict[str, Value]
) -> None:
    """The arguments of this call, merged with those of the other calls."""
    if any(isinstance(a, ast.Starred) for a in node.args):
        return
    given = {p.arg: value for p, value in zip(function.parameters, args)} | values
    given = {name: _handed_over(value) for name, value in given.items()}
    if function.arguments is None:
        function.arguments = given
        return
    known = function.arguments
    function.arguments = {n: join(known[n], given[n]) for n in known if n in given}

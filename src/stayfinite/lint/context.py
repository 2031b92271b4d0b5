"""The code around an operation, as rules see it, and the reporting of findings."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .module import Function, Module, is_backward, is_differentiated
from .names import dotted, is_evaluation
from .operation import Operation, names_in
from .values import NAMED, NOGRAD, NP, PY, Value

__all__ = ["Context", "Event", "Hit"]

_FINITE_CALLS = {"isnan", "isinf", "isfinite", "nan_to_num", "nan_to_num_", "isneginf", "isposinf"}
_INFINITE = {"inf", "nan", "infty", "Inf", "NaN"}


@dataclass(frozen=True)
class Hit:
    """A finding of a rule at one place."""

    code: str
    node: ast.AST
    message: str
    is_default: bool
    remedy: str | None = None


@dataclass(frozen=True)
class Event:
    """A call that matters to a training loop, in source order."""

    kind: str
    receiver: str
    node: ast.Call
    statement: ast.stmt
    loop: ast.stmt | None
    """The innermost loop around it."""
    tests: tuple[ast.expr, ...]
    """The conditions around it, within that loop."""


@dataclass(eq=False)
class Context:
    """One function, or a file's own statements, while they are read."""

    module: Module
    function: Function | None
    body: list[ast.stmt]
    hits: list[Hit] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    is_grad: bool = True
    statement: ast.stmt | None = None
    outer_tested: frozenset[str] = frozenset()
    _tested: set[str] | None = None
    _branched: set[str] | None = None
    _handled: set[str] | None = None

    @property
    def name(self) -> str:
        return self.function.name if self.function else ""

    @property
    def is_differentiated(self) -> bool:
        """Whether a gradient is likely to flow through this: a forward or a loss."""
        if not self.is_grad or self.function is None or is_evaluation(self.name):
            return False
        if is_differentiated(self.function):
            return True
        if is_backward(self.function):
            return False
        return self.name in self.module.called_with_gradient()

    def report(
        self,
        code: str,
        node: ast.AST,
        message: str,
        default: bool = True,
        remedy: str | None = None,
    ) -> None:
        """Add a finding, unless the following code handles the bad values."""
        if self._is_handled():
            return
        if remedy is not None and remedy.startswith("floor_") and not default:
            remedy = None  # a floor needs the dtype of a tensor, but this may be a plain number
        self.hits.append(Hit(code, node, message, default, remedy))

    def is_foreign(self, *values: Value) -> bool:
        """Whether this is arithmetic of Python or numpy, not of tensors."""
        return any(value.has(NP) for value in values) or all(value.has(PY) for value in values)

    def is_tested(self, op: Operation, *values: Value) -> bool:
        """Whether the function tests one of these values before it uses it."""
        names = {name for node in op.nodes for name in names_in(node)}
        is_branched = bool(names & self.branched)
        for value in values:
            if value.node is not None:
                names.update(names_in(value.node))
        names -= {"self", "torch", "F", "nn"}
        return is_branched or bool(names & (self.tested | self.outer_tested))

    def has_gradient(self, *values: Value) -> bool:
        return self.is_grad and not all(value.has(NOGRAD | PY | NP) for value in values)

    def is_sure(self, *values: Value) -> bool:
        """Whether the facts come from the source and not only from names."""
        return not any(value.has(NAMED) for value in values)

    @property
    def branched(self) -> set[str]:
        """Names in the conditions of `where`."""
        if self._branched is None:
            self._look()
        return self._branched or set()

    @property
    def tested(self) -> set[str]:
        if self._tested is None:
            self._look()
        return self._tested or set()

    def _is_handled(self) -> bool:
        if self._handled is None:
            self._look()
        handled = self._handled or set()
        return bool(handled) and bool(_targets(self.statement) & handled)

    def _look_at_call(self, node: ast.Call, branched: set[str], handled: set[str]) -> None:
        if _last(node.func) in _FINITE_CALLS:
            handled.update(names_in(node))
        condition = _condition(node)
        if condition is not None:
            branched.update(names_in(condition))

    def _look(self) -> None:
        """Collect the tests and repairs of a function, once it has a finding."""
        self._tested, self._branched, self._handled = set(), set(), set()
        for statement in self.body:
            for node in ast.walk(statement):
                if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
                    self._tested.update(_tested_names(node.test))
                elif isinstance(node, ast.Call):
                    self._look_at_call(node, self._branched, self._handled)
                elif isinstance(node, ast.Compare) and _mentions_infinity(node):
                    self._handled.update(names_in(node))
        self._handled -= {"torch", "self", "float", "np", "math"}


def _condition(node: ast.Call) -> ast.expr | None:
    """The first operand of `torch.where(c, a, b)`, the second of `a.where(c, b)`."""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "where" and node.args:
        return node.args[0]
    return None


def _tested_names(test: ast.expr) -> set[str]:
    """Names in a test of a value; `x is None` and bare flags do not test a value."""
    if isinstance(test, ast.BoolOp):
        return set().union(*(_tested_names(part) for part in test.values))
    if isinstance(test, ast.UnaryOp):
        return _tested_names(test.operand)
    if isinstance(test, ast.Compare):
        if isinstance(test.ops[0], (ast.Is, ast.IsNot)):
            return set()
        return set(names_in(test))
    if isinstance(test, ast.Call):
        return set(names_in(test)) - {"isinstance", "hasattr"}
    return set(names_in(test)) if isinstance(test, ast.Name) else set()


def _last(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _mentions_infinity(node: ast.Compare) -> bool:
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and child.attr in _INFINITE:
            return True
        if isinstance(child, ast.Constant) and child.value in ("inf", "-inf"):
            return True
    return False


def _targets(statement: ast.stmt | None) -> set[str]:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        func = statement.value.func
        targets = [func.value] if isinstance(func, ast.Attribute) else []
    else:
        return set()
    return {dotted(t).partition(".")[0] or "" for t in targets} - {"self", ""} | {
        name for t in targets if isinstance(t, (ast.Tuple, ast.Subscript)) for name in names_in(t)
    }

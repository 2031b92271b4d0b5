"""Exponentials divided by their own sums (softmax, Sinkhorn) rewritten in log space."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .catalogue import pattern
from .edits import Edit
from .log_space import without_epsilon
from .matching import call, grouped, name_of, rest_of_call
from .source import Scope, Source, binds

__all__: list[str] = []

_TURNED = ("t", "transpose", "permute", "contiguous")
_OF_SHAPE = ("shape", "dtype", "device", "ndim", "size", "dim", "numel")
_WHY = "the result is the same, and no exponential can overflow or leave a row of zeros"


@pattern(
    "normalized_in_log_space",
    "normalize in log space: subtract the logsumexp instead of dividing by the sum",
    _WHY,
)
def normalized_in_log_space(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    made = _Rewriting.of(source, node)
    return made.edits if made is not None and not made.num_epsilons else None


@pattern(
    "normalized_in_log_space_without_epsilon",
    "normalize in log space, which needs no epsilon: subtract the logsumexp instead of dividing by the sum",
    _WHY,
    is_equivalent=False,
)
def normalized_in_log_space_without_epsilon(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    made = _Rewriting.of(source, node)
    return made.edits if made is not None and made.num_epsilons else None


class _Unclear(Exception):
    """Raised if the variable is used in a way that has no equivalent for logarithms."""


@dataclass
class _Rewriting:
    """One variable from its exponential on."""

    source: Source
    name: str
    torch: str
    edits: list[Edit] = field(default_factory=list)
    num_epsilons: int = 0
    num_sums: int = 0
    done: list[ast.AST] = field(default_factory=list)
    """Statements that are rewritten as a whole."""

    @classmethod
    def of(cls, source: Source, node: ast.AST) -> _Rewriting | None:
        torch = name_of(source, "torch")
        if torch is None or not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return None
        target = node.targets[0]
        exponential = _exponential(node.value)
        if not isinstance(target, ast.Name) or exponential is None:
            return None
        made = cls(source, target.id, torch)
        try:
            made._rewrite(node, exponential)
        except _Unclear:
            return None
        return made if made.num_sums else None

    def _rewrite(self, first: ast.Assign, exponential: ast.Call) -> None:
        scope = self.source.scope(first)
        found = call(exponential, "exp")
        assert found is not None
        is_whole = exponential is first.value and "\n" not in self.source.text_of(found[1])
        inside = self.source.text_of(found[1]) if is_whole else grouped(self.source, found[1])
        self.edits.append(Edit(*self.source.span(exponential), inside))
        if any(n.arg == self.name for n in _arguments_inside(scope)):
            raise _Unclear
        for node in _behind(scope, first):
            if self.name in binds(node) and not isinstance(node, ast.For):
                self._normalize(node)
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and node.id == self.name:
                self._read(node, first)

    def _normalize(self, statement: ast.AST) -> None:
        """`m = m / m.sum(1)`, `m /= m.sum(1)`, `m *= 2`: a product becomes a sum."""
        text = self.name
        for sign, factor in self._factors(statement):
            text += f" {sign} {self._log_of(factor)}"
        self.edits.append(Edit(*self.source.span(statement), f"{self.name} = {text}"))
        self.done.append(statement)

    def _factors(self, statement: ast.AST) -> list[tuple[str, ast.expr]]:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            return [(_sign(statement.op), statement.value)]
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise _Unclear
        factors, at = [], statement.value
        while isinstance(at, ast.BinOp):
            factors.append((_sign(at.op), at.right))
            at = at.left
        if not self._is_it(at) or len(statement.targets) != 1:
            raise _Unclear
        return factors[::-1]

    def _log_of(self, factor: ast.expr) -> str:
        written = self.source.definition(factor)
        total = without_epsilon(written)
        found = call(total, "sum")
        if found is None or not self._is_it(found[1]):
            if self._reads(factor):
                raise _Unclear
            return f"{self.torch}.as_tensor({self.source.text_of(factor)}).log()"
        _, _, args, keywords = found
        if any(k.arg not in ("dim", "keepdim") for k in keywords):
            raise _Unclear
        self.num_sums += 1
        self.num_epsilons += total is not written
        rest = rest_of_call(self.source, args, keywords)
        of = self.name if rest else f"{self.name}.flatten()"
        text = f"{self.torch}.logsumexp({of}, {rest or 'dim=0'})"
        if written is factor:
            return text
        assert isinstance(factor, ast.Name)
        if self._num_uses(factor) > 1:
            raise _Unclear  # the sum itself is used elsewhere
        self.edits.append(Edit(*self.source.span(written), text))
        self.done.append(written)
        return factor.id

    def _num_uses(self, name: ast.Name) -> int:
        scope = self.source.scope(name)
        return sum(
            isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)
            for n in ast.walk(scope)
        )

    def _read(self, use: ast.Name, first: ast.Assign) -> None:
        """Replace each use of the variable by its exponential, or by its logarithm if that is taken."""
        around = list(self._around(use))
        if first in around or any(d in around for d in self.done):
            return
        if (use.lineno, use.col_offset) < (first.lineno, first.col_offset):
            if isinstance(use.ctx, ast.Load) and _is_in_loop(self.source, first):
                raise _Unclear  # it may read the value of the previous iteration
            return
        if not isinstance(use.ctx, ast.Load) or not self.source.reaches(first, use):
            raise _Unclear
        parent = around[0]
        if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
            return
        is_text = any(isinstance(n, ast.JoinedStr) for n in around)
        is_handed_on = any(isinstance(n, ast.Expr) for n in around)
        if is_text or is_handed_on:
            raise _Unclear  # the positions are unknown, or it is used in place
        logs = (n for n in around[:2] if isinstance(n, ast.Call) and call(n, "log"))
        log = next((n for n in logs if not n.keywords and self._is_it(_operand(n))), None)
        new = self.name if log is not None else f"{self.name}.exp()"
        self.edits.append(Edit(*self.source.span(log if log is not None else use), new))

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        at = self.source.parent(node)
        while at is not None:
            yield at
            at = self.source.parent(at)

    def _is_it(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.name

    def _reads(self, node: ast.AST) -> bool:
        return any(self._is_it(n) for n in ast.walk(node))


def _operand(node: ast.Call) -> ast.expr:
    found = call(node)
    assert found is not None
    return found[1]


def _sign(operator: ast.operator) -> str:
    if isinstance(operator, ast.Div):
        return "-"
    if isinstance(operator, ast.Mult):
        return "+"
    raise _Unclear


def _exponential(value: ast.expr) -> ast.Call | None:
    """`exp(x)` in `exp(x)`, in `exp(x).t()` and in `exp(x).T`."""
    while True:
        found = call(value)
        if found is not None and found[0] == "exp" and not found[2] and not found[3]:
            assert isinstance(value, ast.Call)
            return value
        if found is not None and found[0] in _TURNED:
            value = found[1]
        elif isinstance(value, ast.Attribute) and value.attr in ("T", "mT"):
            value = value.value
        else:
            return None


def _behind(scope: Scope, first: ast.Assign) -> Iterator[ast.AST]:
    """Statements and calls after a statement, in source order."""
    nodes = [n for n in ast.walk(scope) if isinstance(n, (ast.stmt, ast.Call, ast.NamedExpr))]
    nodes.sort(key=lambda n: (n.lineno, n.col_offset))
    last = first.end_lineno or first.lineno
    return (n for n in nodes if n.lineno > last)


def _arguments_inside(scope: Scope) -> Iterator[ast.arg]:
    """Parameters of nested functions."""
    for node in ast.walk(scope):
        if node is not scope and isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        ):
            yield from (n for n in ast.walk(node.args) if isinstance(n, ast.arg))


def _is_in_loop(source: Source, node: ast.AST) -> bool:
    scope, at = source.scope(node), source.parent(node)
    while at is not None and at is not scope:
        if isinstance(at, (ast.For, ast.While)):
            return True
        at = source.parent(at)
    return False

"""A constant that the loss is multiplied by, replaced by a GradScaler: scale, unscale, step and update."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .edits import Edit, Remedy
from .matching import dotted, free_name, name_of, stands_alone
from .source import Source

__all__ = ["ScaledLoss", "scaled_loss"]


@dataclass(frozen=True)
class ScaledLoss:
    """A product of a loss and its scale, with all places that know the scale."""

    source: Source
    product: ast.BinOp
    scale: ast.expr

    @property
    def _loss(self) -> ast.expr:
        return self.product.right if self.product.left is self.scale else self.product.left

    @property
    def uses(self) -> list[ast.expr]:
        """Where the scale is read, as far as the same name means it."""
        wanted = ast.dump(self.scale)
        found = [n for n in ast.walk(self._home()) if isinstance(n, ast.expr)]
        return [n for n in found if ast.dump(n) == wanted]

    def _home(self) -> ast.AST:
        """The class for what hangs on `self`, the function for a variable of its own, else the file."""
        source = self.source
        scope = source.scope(self.scale)
        name = dotted(self.scale).partition(".")[0]
        if name == "self":
            return source.parent(scope) or source.tree
        stored = {
            n.id
            for n in ast.walk(scope)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        return scope if name in stored | source.parameters(scope) else source.tree

    def with_number(self, value: float) -> str:
        """The text in which the scale is a plain number: what a scaler that has come to it computes."""
        text = self.source.text
        for node in sorted(self.uses, key=lambda n: -self.source.span(n)[0]):
            start, end = self.source.span(node)
            text = f"{text[:start]}{value!r}{text[end:]}"
        return text

    def with_scaler(self, device: str) -> Remedy | None:
        """`scaler.scale(loss).backward()`, `unscale_` where the loop divides, `step` and `update`."""
        source = self.source
        first = source.statement(self.product)
        torch = name_of(source, "torch")
        step = self._step()
        if first is None or torch is None or step is None:
            return None
        optimizer = dotted(step.value.func.value)  # type: ignore[attr-defined]
        made = self._made(step, optimizer)
        if made is None:
            return None
        home, _, _ = optimizer.rpartition(".")
        name = free_name(source, made, "scaler")
        scaler = f"{home}.{name}" if home else name
        divided = self._divided(first)
        known = {self.scale, *(n for s in divided for n in ast.walk(s))}
        if any(n not in known for n in self.uses):
            return None  # something else goes by it as well
        indent = source.indent(step)
        new = [
            self._scaled(scaler),
            Edit(*source.span(step), f"{scaler}.step({optimizer}){source.newline}{indent}{scaler}.update()"),
            _behind(source, made, f'{scaler} = {torch}.amp.GradScaler("{device}")'),
            *(Edit(*source.span(s), f"{scaler}.unscale_({optimizer})") for s in divided[:1]),
        ]  # fmt: skip
        if len(divided) > 1 or not all(stands_alone(source, s) for s in (first, step, made)):
            return None
        return Remedy(
            name="grad_scaler",
            title="let a GradScaler find the loss scale",
            why="it starts at 65536, halves it after an overflow, leaves that step out, and doubles it again "
            "when nothing has overflowed for long",
            line=self.product.lineno,
            edits=tuple(new),
        )

    def _scaled(self, scaler: str) -> Edit:
        source = self.source
        start, end = source.span(self.product)
        parent = source.parent(self.product)
        if isinstance(parent, ast.Attribute) and source.text[start - 1 : start] == "(":
            start, end = start - 1, source.text.index(")", end) + 1
        return Edit(start, end, f"{scaler}.scale({source.text_of(self._loss)})")

    def _step(self) -> ast.Expr | None:
        """The one `optimizer.step()` behind it in the same function."""
        source = self.source
        scope = source.scope(self.product)
        found = [
            n for n in ast.walk(scope)
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)
            and dotted(n.value.func).endswith(".step") and not n.value.args and not n.value.keywords
            and n.lineno > self.product.lineno and "sched" not in dotted(n.value.func).lower()
        ]  # fmt: skip
        return found[0] if len(found) == 1 else None

    def _made(self, step: ast.Expr, optimizer: str) -> ast.Assign | None:
        """Where the optimizer is built, as far as its scaler can be seen from the step too."""
        source = self.source
        found = [
            n for n in ast.walk(source.tree)
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
            and [dotted(t) for t in n.targets] == [optimizer]
        ]  # fmt: skip
        if len(found) != 1:
            return None
        scope = source.scope(found[0])
        if optimizer.startswith("self."):
            one, other = source.parent(scope), source.parent(source.scope(step))
            return found[0] if one is other and isinstance(one, ast.ClassDef) else None
        is_seen = scope is source.scope(step) or isinstance(scope, ast.Module)
        return found[0] if is_seen and "." not in optimizer else None

    def _divided(self, first: ast.stmt) -> list[ast.stmt]:
        """Loops over the parameters behind it that do nothing but take the scale out of each gradient."""
        wanted = ast.dump(self.scale)
        found = []
        for node in ast.walk(self.source.scope(self.product)):
            if not isinstance(node, ast.For) or node.lineno <= first.lineno or node.orelse:
                continue
            inner = [
                n for n in ast.walk(node) if isinstance(n, (ast.Expr, ast.Assign, ast.AugAssign))
            ]
            names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            is_user_code = "grad" in names and {"parameters", "param_groups"} & names
            if len(inner) == 1 and is_user_code and _holds(inner[0], wanted):
                found.append(node)
        outer = [f for f in found if not any(f is not g and f in ast.walk(g) for g in found)]
        return list(outer)


def scaled_loss(source: Source, line: int, scale: ast.expr) -> ScaledLoss | None:
    """The product at a line of which `scale` is a factor."""
    product = source.parent(scale)
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    is_name = isinstance(scale, (ast.Name, ast.Attribute))
    is_there = product.lineno <= line <= (product.end_lineno or product.lineno)
    return ScaledLoss(source, product, scale) if is_name and is_there else None


def _holds(node: ast.AST, wanted: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.dump(n) == wanted for n in ast.walk(node))


def _behind(source: Source, statement: ast.stmt, text: str) -> Edit:
    end = source.line_start((statement.end_lineno or statement.lineno) + 1)
    return Edit(end, end, f"{source.indent(statement)}{text}{source.newline}")

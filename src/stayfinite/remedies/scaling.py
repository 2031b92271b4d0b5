"""Replaces a constant factor of the loss by a GradScaler: scale, unscale, step and update."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .edits import Edit, Remedy
from .matching import dotted, free_name, name_of, stands_alone
from .source import Source

__all__ = ["ScaledLoss", "scaled_loss", "step_left_to_scaler"]


@dataclass(frozen=True)
class ScaledLoss:
    """A product of a loss and its scale, with all uses of the scale."""

    source: Source
    product: ast.BinOp
    scale: ast.expr

    @property
    def _loss(self) -> ast.expr:
        return self.product.right if self.product.left is self.scale else self.product.left

    @property
    def uses(self) -> list[ast.expr]:
        """The uses of the scale under the same name."""
        wanted = ast.dump(self.scale)
        found = [n for n in ast.walk(self._home()) if isinstance(n, ast.expr)]
        return [n for n in found if ast.dump(n) == wanted]

    def _home(self) -> ast.AST:
        """The class for an attribute of `self`, the function for a local variable, else the file."""
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
        """The text with the scale as a number, as a GradScaler that has reached it would compute."""
        text = self.source.text
        for node in sorted(self.uses, key=lambda n: -self.source.span(n)[0]):
            start, end = self.source.span(node)
            text = f"{text[:start]}{value!r}{text[end:]}"
        return text

    def with_scaler(self, device: str) -> Remedy | None:
        """`scaler.scale(loss).backward()`, `unscale_` in place of the division, `step` and `update`."""
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
            return None  # it is used for something else as well
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
        """The only `optimizer.step()` after it in the same function."""
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
        """The line that makes the optimizer, if a scaler made there is visible at the step too."""
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
        """Loops over the parameters after it that only remove the scale from each gradient."""
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
    """The product on a line with `scale` as a factor."""
    product = source.parent(scale)
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    is_name = isinstance(scale, (ast.Name, ast.Attribute))
    is_there = product.lineno <= line <= (product.end_lineno or product.lineno)
    return ScaledLoss(source, product, scale) if is_name and is_there else None


def step_left_to_scaler(source: Source, line: int) -> Remedy | None:
    """Take the `optimizer.step()` on a line only where `scaler.step(optimizer)` is not called.

    >>> s = Source("scaler.step(opt)\\nscaler.update()\\nopt.step()\\n")
    >>> step_left_to_scaler(s, 3).edits
    (Edit(start=33, end=44, text=''),)
    """
    plain = source.statement_at(line)
    if not isinstance(plain, ast.Expr) or not isinstance(plain.value, ast.Call):
        return None
    optimizer = dotted(plain.value.func).rpartition(".")[0]
    through = [
        n for n in ast.walk(source.scope(plain))
        if isinstance(n, ast.Call) and dotted(n.func).endswith(".step")
        and [dotted(a) for a in n.args] == [optimizer]
    ]  # fmt: skip
    if not optimizer or len(through) != 1 or not stands_alone(source, plain):
        return None
    edits = _only_without(source, plain, source.statement(through[0]))
    if edits is None:
        return None
    return Remedy(
        name="step_left_to_scaler",
        title="leave the step to the scaler: no optimizer.step() after scaler.step(optimizer)",
        why="the scaler takes the step itself, and leaves it out after an overflow; with both, every other "
        "step is taken twice",
        line=line, edits=tuple(sorted(edits)), is_equivalent=False,
    )  # fmt: skip


def _only_without(source: Source, plain: ast.stmt, scaled: ast.stmt | None) -> list[Edit] | None:
    """Move a statement to where the other one is not run: nowhere, or the other branch of its condition."""
    whole = (source.line_start(plain.lineno), source.line_start((plain.end_lineno or 0) + 1))
    block, at = source.parent(plain), scaled
    while at is not None and source.parent(at) is not block:
        inner, at = at, source.parent(at)  # type: ignore[assignment]
        if not isinstance(at, ast.If) or inner not in at.body:
            return None
        if source.parent(at) is block and not at.orelse:
            indent, newline = source.indent(plain), source.newline
            text = (
                f"if not ({source.text_of(at.test)}):{newline}{indent}    {source.text_of(plain)}"
            )
            return [Edit(*source.span(plain), text)]
        if source.parent(at) is block and not isinstance(at.orelse[0], ast.If):
            last = at.orelse[-1]
            end = source.line_start((last.end_lineno or 0) + 1)
            text = f"{source.indent(last)}{source.text_of(plain)}{source.newline}"
            return [Edit(end, end, text), Edit(*whole, "")]
    siblings = getattr(block, "body", [])
    is_same_block = at is scaled and plain in siblings and at in siblings and len(siblings) > 1
    return [Edit(*whole, "")] if is_same_block else None


def _holds(node: ast.AST, wanted: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.dump(n) == wanted for n in ast.walk(node))


def _behind(source: Source, statement: ast.stmt, text: str) -> Edit:
    end = source.line_start((statement.end_lineno or statement.lineno) + 1)
    return Edit(end, end, f"{source.indent(statement)}{text}{source.newline}")

"""Training loops: wrong order of calls, and missing calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .catalogue import pattern
from .edits import Edit
from .matching import dotted, stands_alone
from .source import Source

__all__ = ["clip_behind"]


def _calls(source: Source, node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a method with this name in the same function, in source order."""
    found = [
        n
        for n in ast.walk(source.scope(node))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == name
    ]
    yield from sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _receiver(node: ast.Call) -> str:
    return dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""


def _scaler(source: Source, node: ast.AST) -> str:
    """The object of `scale(loss)`."""
    return next((_receiver(c) for c in _calls(source, node, "scale") if _receiver(c)), "")


def _stepped(source: Source, node: ast.AST, scaler: str) -> str:
    """The optimizer in `scaler.step(optimizer)`."""
    for found in _calls(source, node, "step"):
        if _receiver(found) == scaler and found.args:
            return dotted(found.args[0])
    return ""


def _before(source: Source, statement: ast.stmt, text: str) -> Edit:
    start = source.line_start(statement.lineno)
    return Edit(start, start, f"{source.indent(statement)}{text}{source.newline}")


def _after(source: Source, statement: ast.stmt, text: str) -> Edit | None:
    assert statement.end_lineno is not None
    end = source.line_start(statement.end_lineno + 1)
    if not source.text[:end].endswith("\n"):
        return Edit(end, end, f"{source.newline}{source.indent(statement)}{text}")
    return Edit(end, end, f"{source.indent(statement)}{text}{source.newline}")


@pattern(
    "unscale_first",
    "call scaler.unscale_(optimizer) before the clipping",
    "the limit is meant for the true gradients, not for those times the loss scale",
)
def unscale_first(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    statement = source.statement(node)
    if statement is None or not stands_alone(source, statement):
        return None
    scaler = _scaler(source, node)
    later = [c for c in _calls(source, node, "unscale_") if c.lineno > statement.lineno]
    if later:
        return _moved_before(source, source.statement(later[0]), statement)
    optimizer = _stepped(source, node, scaler)
    if not scaler or not optimizer:
        return None
    return [_before(source, statement, f"{scaler}.unscale_({optimizer})")]


def _moved_before(source: Source, moved: ast.stmt | None, place: ast.stmt) -> list[Edit] | None:
    """Move a statement in front of another one of the same block."""
    if moved is None or moved not in source.block(place) or not stands_alone(source, moved):
        return None
    start, end = source.line_start(moved.lineno), source.line_start((moved.end_lineno or 0) + 1)
    target = source.line_start(place.lineno)
    text = source.text[start:end]
    if not text.endswith("\n"):
        return None
    return [Edit(target, target, text), Edit(start, end, "")]


@pattern(
    "step_order",
    "call scheduler.step() after optimizer.step()",
    "the schedule's first value is then used, and every step has the rate meant for it",
)
def step_order(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    statement = source.statement(node)
    if not isinstance(statement, ast.Expr) or not stands_alone(source, statement):
        return None
    for found in _calls(source, node, "step"):
        later = source.statement(found)
        is_later = later is not None and later.lineno > statement.lineno
        if is_later and later in source.block(statement) and stands_alone(source, later):
            return _swapped(source, statement, later)
    return None


def _swapped(source: Source, first: ast.stmt, second: ast.stmt | None) -> list[Edit] | None:
    assert second is not None
    start, end = source.line_start(first.lineno), source.line_start((first.end_lineno or 0) + 1)
    target = source.line_start((second.end_lineno or 0) + 1)
    if not source.text[:target].endswith("\n"):
        return None
    return [Edit(start, end, ""), Edit(target, target, source.text[start:end])]


@pattern(
    "clip_first",
    "clip the gradients before optimizer.step()",
    "behind the step they have been used already, and the clipping changes nothing",
)
def clip_first(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    statement = source.statement(node)
    clip = clip_behind(source, node)
    is_step = isinstance(node, ast.Call) and dotted(node.func).endswith(".step")
    if clip is None or not is_step or statement is None or not stands_alone(source, statement):
        return None
    return _moved_before(source, source.statement(clip), statement)


def clip_behind(source: Source, step: ast.AST) -> ast.Call | None:
    """The clipping after a step in its block, if there is none before it."""
    statement = source.statement(step)
    block = source.block(statement) if statement is not None else []
    if statement is None or not isinstance(statement, ast.Expr) or statement not in block:
        return None
    at = block.index(statement)
    clips = [_clip_of(each) for each in block]
    if any(clips[:at]):
        return None
    return next((c for c in clips[at + 1 :] if c is not None), None)


def _clip_of(statement: ast.stmt) -> ast.Call | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    is_clip = isinstance(value, ast.Call) and dotted(value.func).endswith("clip_grad_norm_")
    return value if is_clip and isinstance(value, ast.Call) else None


@pattern(
    "scaler_step",
    "step through the scaler: scaler.step(optimizer), scaler.update()",
    "it divides the gradients by the loss scale, and leaves a step out that has overflowed",
)
def scaler_step(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    statement = source.statement(node)
    scaler = _scaler(source, node)
    if not isinstance(node, ast.Call) or not scaler or not stands_alone(source, statement):
        return None
    if node.args or node.keywords or statement is None:
        return None
    start, end = source.span(node)
    edits = [Edit(start, end, f"{scaler}.step({_receiver(node)})")]
    if not any(_receiver(c) == scaler for c in _calls(source, node, "update")):
        added = _after(source, statement, f"{scaler}.update()")
        edits += [added] if added is not None else []
    return edits


@pattern(
    "scaler_update",
    "call scaler.update() after scaler.step(optimizer)",
    "it lowers the scale after an overflow; without it all later steps are left out",
)
def scaler_update(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    statement = source.statement(node)
    if not isinstance(node, ast.Call) or statement is None or not stands_alone(source, statement):
        return None
    if dotted(node.func).rpartition(".")[2] != "step" or not node.args:
        return None
    added = _after(source, statement, f"{_receiver(node)}.update()")
    return None if added is None else [added]


@pattern(
    "isfinite",
    "ask whether it is finite, not whether it is NaN",
    "Inf is not NaN, and the step after it makes NaN of every weight",
)
def isfinite(source: Source, node: ast.AST) -> Iterable[Edit] | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr != "isnan":
        return None
    whole, suffix = _whole_question(source, node)
    parent = source.parent(whole)
    start, end = source.span(whole)
    head = source.text_of(node.func.value)
    arguments = source.text[source.span(node.func)[1] : source.span(node)[1]]
    asked = f"{head}.isfinite{arguments}{suffix}"
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        return [Edit(*source.span(parent), asked)]
    if isinstance(parent, (ast.If, ast.While, ast.BoolOp, ast.Assert)):
        return [Edit(start, end, f"not {asked}")]
    return None


def _whole_question(source: Source, node: ast.Call) -> tuple[ast.Call, str]:
    """Replace the whole `isnan(x).any()`; its opposite is `isfinite(x).all()`."""
    above = source.parent(node)
    outer = source.parent(above) if above is not None else None
    is_any = isinstance(above, ast.Attribute) and above.attr == "any"
    if is_any and isinstance(outer, ast.Call) and not outer.args:
        return outer, ".all()"
    return node, ""

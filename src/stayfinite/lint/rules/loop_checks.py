"""NaN checks that miss cases, and repairs that do not repair."""

from __future__ import annotations

import ast
import re

from .. import values as v
from ..context import Context, Event, Hit
from ..names import dotted
from ..operation import Operation
from .registry import end_of_function, on

_LOSS = re.compile(r"(^|_)loss(es)?$", re.I)
_BEST = re.compile(r"(^|_)best(_|$)|^best|(^|_)min_(val_)?loss", re.I)
_LEAVES = (ast.Continue, ast.Return, ast.Break, ast.Raise)


@on("compare")
def compared_with_nan(op: Operation, ctx: Context) -> None:
    if not isinstance(op.node, ast.Compare):  # a method of somebody's that is called `compare`
        return
    comparison = op.node.ops[0]
    if isinstance(comparison, (ast.Eq, ast.NotEq)) and any(x.has(v.NAN) for x in op.args):
        always = "False" if isinstance(comparison, ast.Eq) else "True"
        message = f"NaN is equal to nothing, not even to itself: this is always {always}"
        ctx.hits.append(Hit("SF212", op.node, message, is_default=True))


@on("clamp", "clamp_max", "minimum", "min")
def clamped_loss(op: Operation, ctx: Context) -> None:
    name = dotted(op.nodes[0]) if op.nodes else ""
    if not _LOSS.search(name.rpartition(".")[2]) or ctx.is_foreign(op.first) or not ctx.is_grad:
        return
    index, key = {"clamp": (2, "max"), "clamp_max": (1, "max")}.get(op.name, (1, "other"))
    high = op.value(index, key)
    if high is None or not high.has(v.PY) or (high.number is not None and high.number <= 1):
        return
    kept = ctx.statement
    is_kept = isinstance(kept, ast.Assign) and dotted(kept.targets[0]) == name
    ctx.report(
        "SF207",
        op.node,
        "above the limit the loss has no gradient: the worst samples are no longer learned",
        default=is_kept,
    )


@end_of_function
def repaired_gradients(ctx: Context) -> None:
    """Zeroed or `nan_to_num`-ed gradients, followed by a step: momentum and decay still change the weights."""
    steps = [e for e in ctx.events if e.kind == "step" and "sched" not in e.receiver.lower()]
    backward = [e for e in ctx.events if e.kind == "backward"]
    if not steps or not backward:
        return
    last = max(e.node.lineno for e in steps)
    for event in ctx.events:
        if event.node.lineno < last and (_repairs(event) or _zeroes_bad(event, ctx)):
            ctx.report(
                "SF206",
                event.node,
                "the step is made all the same: momentum and weight decay still move the weights",
            )


def _repairs(event: Event) -> bool:
    if event.kind != "nan_to_num":
        return False
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(event.node))


def _zeroes_bad(event: Event, ctx: Context) -> bool:
    """`if isnan(...): optimizer.zero_grad()` without skipping the step."""
    if event.kind != "zero_grad" or not event.tests:
        return False
    test = event.tests[-1]
    calls = {
        n.func.attr
        for n in ast.walk(test)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    }
    return bool(calls & {"isnan", "isinf", "isfinite"}) and not _leaves_after(ctx, test)


def _leaves_after(ctx: Context, test: ast.expr) -> bool:
    for statement in ctx.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.If) and node.test is test:
                return any(isinstance(s, _LEAVES) for s in node.body) or bool(node.orelse)
    return False


@end_of_function
def nan_without_inf(ctx: Context) -> None:
    checks = [e for e in ctx.events if e.kind == "isnan"]
    if not checks or any(e.kind in ("isinf", "isfinite") for e in ctx.events):
        return
    for event in checks:
        node = event.node
        subject = node.args[0] if node.args else getattr(node.func, "value", node)
        words = " ".join(n.id for n in ast.walk(subject) if isinstance(n, ast.Name))
        words += " ".join(n.attr for n in ast.walk(subject) if isinstance(n, ast.Attribute))
        if re.search(r"loss|grad|norm", words, re.I) and _is_condition(event):
            ctx.report(
                "SF208",
                node,
                "Inf is not NaN: an infinite loss or gradient goes through",
                remedy="isfinite",
            )


def _is_condition(event: Event) -> bool:
    """Whether it is in the test of an `if` or an `assert`, not in arithmetic."""
    kept = event.statement
    if not isinstance(kept, (ast.If, ast.While, ast.Assert)):
        return False
    parts = list(ast.walk(kept.test))
    is_bounded = any(isinstance(n, ast.Compare) for n in parts)
    return not is_bounded and any(n is event.node for n in parts)


@end_of_function
def saved_without_a_look(ctx: Context) -> None:
    kinds = {e.kind for e in ctx.events}
    if "backward" not in kinds or kinds & {"isnan", "isinf", "isfinite"}:
        return
    for event in ctx.events:
        if event.kind == "save" and event.receiver in ("torch", "accelerator", "checkpoint"):
            ctx.report(
                "SF209",
                event.node,
                "a corrupted model overwrites the last good checkpoint",
                default=False,
            )


@end_of_function
def best_kept_on_nan(ctx: Context) -> None:
    for statement in ctx.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.If):
                _first_is_kept(node, ctx)
                _kept_in_else(node, ctx)


def _first_is_kept(node: ast.If, ctx: Context) -> None:
    """`if best is None or x < best: best = x`: a first NaN is never beaten."""
    if not isinstance(node.test, ast.BoolOp) or not isinstance(node.test.op, ast.Or):
        return
    compared = [t for t in node.test.values if isinstance(t, ast.Compare)]
    nones = [t for t in compared if isinstance(t.ops[0], ast.Is)]
    orders = [t for t in compared if isinstance(t.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE))]
    if nones and orders and _is_best(orders[0]):
        ctx.report(
            "SF213", node.test, "a first value of NaN is kept: nothing is better than NaN", False
        )


def _kept_in_else(node: ast.If, ctx: Context) -> None:
    """`if x > best: ... else: best = x`: every comparison with NaN is False."""
    test = node.test
    if not isinstance(test, ast.Compare) or not node.orelse or not _is_best(test):
        return
    if not isinstance(test.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE)):
        return
    best = {dotted(test.left), dotted(test.comparators[0])}
    for kept in node.orelse:
        name = dotted(kept.targets[0]) if isinstance(kept, ast.Assign) else ""
        if name in best and _BEST.search(name.rpartition(".")[2]):
            ctx.report("SF213", test, "NaN fails the comparison and is kept as the best", True)


def _is_best(test: ast.Compare) -> bool:
    names = (dotted(test.left), dotted(test.comparators[0]))
    return any(_BEST.search(name.rpartition(".")[2]) for name in names if name)

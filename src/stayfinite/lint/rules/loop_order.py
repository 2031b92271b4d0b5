"""Order and completeness of a training loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ..context import Context, Event, Hit
from ..module import Module
from ..names import dotted
from ..operation import names_in
from .registry import end_of_file, end_of_function

_CLEARS = re.compile(r"(zero|clear|reset|free)_?grad|set_to_none")


def _is_optimizer(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return ("optim" in last or last in ("opt", "opt_g", "opt_d")) and not _is_scheduler(name)


def _is_scheduler(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return "sched" in last


def _steps(ctx: Context) -> list[Event]:
    return [e for e in ctx.events if e.kind == "step" and _is_optimizer(e.receiver)]


@end_of_function
def scheduler_before_optimizer(ctx: Context) -> None:
    steps = _steps(ctx)
    for event in ctx.events:
        if event.kind != "step" or not _is_scheduler(event.receiver) or event.loop is None:
            continue
        same = [s for s in steps if s.loop is event.loop and s.tests == event.tests]
        if same and all(s.node.lineno > event.node.lineno for s in same):
            ctx.report(
                "SF204",
                event.node,
                "the first value of the schedule is skipped, and every step uses the next one's rate",
                remedy="step_order",
            )


@end_of_function
def gradients_never_zeroed(ctx: Context) -> None:
    loops = {e.loop for e in ctx.events if e.kind == "backward"} - {None}
    steps = [e for e in _steps(ctx) if e.loop in loops and not e.node.args]
    if not steps or any(e.kind == "zero_grad" for e in ctx.events):
        return
    if _clears_gradients(ctx.module.tree) or _is_made_in_loop(steps[0]):
        return
    ctx.report("SF205", steps[0].node, "gradients of all steps so far add up until they overflow")


def _is_made_in_loop(step: Event) -> bool:
    """An optimizer that is made in every iteration has parameters without gradients."""
    for node in ast.walk(step.loop) if step.loop is not None else ():
        if isinstance(node, ast.Assign) and any(dotted(t) == step.receiver for t in node.targets):
            return True
    return False


def _clears_gradients(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if _CLEARS.search(str(name)):
            return True
        if isinstance(node, ast.Assign) and dotted(node.targets[0]).endswith(".grad"):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "zero_":
            return True
    return False


@end_of_function
def accumulation_without_division(ctx: Context) -> None:
    for step in _steps(ctx):
        period = _period(step.tests)
        if period is None or step.loop is None:
            continue
        backwards = [e for e in ctx.events if e.kind == "backward" and e.loop is step.loop]
        if not backwards or any(e.tests for e in backwards):
            continue
        if not _divides(ctx.body, period):
            ctx.report(
                "SF211",
                backwards[0].node,
                "the gradients of the parts are added: the step is as many times too large",
                default=ctx.function is None or ctx.function.owner is None,
            )


def _period(tests: tuple[ast.expr, ...]) -> ast.expr | None:
    """`n` in `(i + 1) % n == 0`."""
    for test in tests:
        for node in ast.walk(test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                return node.right
    return None


def _divides(body: list[ast.stmt], period: ast.expr) -> bool:
    """Whether the loss is divided by that number, or scaled in another way."""
    names = set(names_in(period)) | {
        n.attr for n in ast.walk(period) if isinstance(n, ast.Attribute)
    }
    for statement in body:
        for node in ast.walk(statement):
            is_quotient = isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(
                node.op, (ast.Div, ast.Mult)
            )
            if is_quotient and (not names or names & _words(node)):
                return True
    return False


def _words(node: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} | set(names_in(node))


@end_of_file
def schedule_not_restored(module: Module, contexts: list[Context]) -> Iterable[Hit]:
    loads = [e for c in contexts for e in c.events if e.kind == "load"]
    restored = [e for e in loads if _is_optimizer(e.receiver)]
    if not restored or any(_is_scheduler(e.receiver) or not e.receiver for e in loads):
        return
    steps = [e for c in contexts for e in c.events if e.kind == "step"]
    if any(_is_scheduler(e.receiver) for e in steps) and _makes_scheduler(module.tree):
        yield Hit(
            "SF210",
            restored[0].node,
            "the optimizer is restored, the schedule starts again from its beginning",
            is_default=False,
        )


def _makes_scheduler(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = dotted(node.value.func).lower()
            if _is_scheduler(dotted(node.targets[0])) and ("lr" in name or "sched" in name):
                return True
    return False

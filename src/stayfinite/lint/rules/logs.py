"""Logarithms of values that can be 0, and losses that take them."""

from __future__ import annotations

import ast

from .. import values as v
from ..context import Context
from ..operation import Operation, is_same
from ..values import Value
from .registry import on


@on("log", "log2", "log10")
def log_of_probability(op: Operation, ctx: Context) -> None:
    x = op.first
    if ctx.is_foreign(x) or x.has(v.SAFE):
        return
    if x.has(v.SOFTMAX | v.SIGMOID) and ctx.is_tested(op, x):
        return
    if x.has(v.SOFTMAX | v.SIGMOID):
        made = "softmax" if x.has(v.SOFTMAX) else "sigmoid"
        ctx.report(
            "SF101",
            op.node,
            f"the {made} underflows to 0 (or saturates at 1) and its log is -inf",
            remedy="log_space" if op.name == "log" else None,
        )
    elif x.has(v.SUMEXP):
        _log_of_sum_of_exponentials(op, ctx, x)
    elif x.has(v.PROB) and not ctx.is_tested(op, x):
        sure = ctx.is_sure(x) and not x.has(v.EXP)
        ctx.report(
            "SF102",
            op.node,
            "a probability that has underflowed to 0 gives -inf",
            default=sure and ctx.is_grad,
            remedy="floor_log",
        )


def _log_of_sum_of_exponentials(op: Operation, ctx: Context, x: Value) -> None:
    if not x.has(v.BOUNDED):
        ctx.report(
            "SF104",
            op.node,
            "exp overflows before the log can bring it back",
            remedy="logsumexp",
        )


@on("log", "log2", "log10", "log1p")
def log_outside_of_domain(op: Operation, ctx: Context) -> None:
    x = op.first
    if ctx.is_foreign(x) or x.has(v.SAFE | v.PROB | v.SUMEXP) or ctx.is_tested(op, x):
        return
    kind = _kind_of_zero(x) if op.name != "log1p" else None
    if kind is None and x.has(v.UNBOUNDED) and not x.has(v.NONNEG):
        kind = "the output of a layer or a product can be below 0"
    if kind is None and op.name != "log1p" and not x.facts and ctx.is_differentiated:
        kind = "nothing here keeps it above 0"
    if kind is not None and (ctx.has_gradient(x) or x.has(v.COUNT)):
        is_default = x.has(v.RELU | v.COUNT) and ctx.is_sure(x) and ctx.is_differentiated
        ctx.report("SF107", op.node, f"{kind}, and its log is not finite", is_default)


def _kind_of_zero(x: Value) -> str | None:
    for fact, words in (
        (v.RELU, "relu or a clamp at 0 gives exactly 0"),
        (v.SUMSQ, "a sum of squares can be 0"),
        (v.SQUARE, "a square can be 0"),
        (v.COUNT, "a count can be 0"),
        (v.NORM | v.STD, "a norm or deviation can be 0"),
        (v.ABS, "an absolute value can be 0"),
    ):
        if x.has(fact):
            return words
    return None


@on("mul")
def zero_times_log(op: Operation, ctx: Context) -> None:
    """p * log(p), as in an entropy or a divergence: 0 * -inf is NaN."""
    if len(op.nodes) < 2:
        return
    for p, log in ((0, 1), (1, 0)):
        inner = _logged(op.args[log].node)
        if inner is None or ctx.is_foreign(op.args[p]):
            continue
        value = op.args[p]
        base = (
            inner.left if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) else inner
        )
        if not is_same(op.nodes[p], base) or value.has(v.SAFE | v.SOFTMAX | v.SIGMOID):
            continue
        if value.has(v.PROB | v.RELU | v.COUNT) and not ctx.is_tested(op, value):
            ctx.report(
                "SF136",
                op.node,
                "where it is 0 this is 0 * -inf, which is NaN",
                default=ctx.is_sure(value) and ctx.is_grad,
            )


def _logged(node: ast.expr | None) -> ast.expr | None:
    """The argument of the log in this expression."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in ("log", "log2"):
        return None
    return node.args[0] if node.args else node.func.value


@on("kl_div")
def divergence_of_probabilities(op: Operation, ctx: Context) -> None:
    if op.first.has(v.SOFTMAX | v.SIGMOID) and not op.first.has(v.LOGPROB):
        ctx.report(
            "SF136", op.node, "the first argument must be log-probabilities, this is a softmax"
        )


@on("binary_cross_entropy")
def cross_entropy_of_sigmoid(op: Operation, ctx: Context) -> None:
    if op.first.has(v.SIGMOID) and not op.first.has(v.SAFE):
        ctx.report(
            "SF103",
            op.node,
            "a saturated sigmoid has no gradient left, half precision raises",
            default=ctx.is_grad and ctx.is_differentiated,
            remedy="with_logits",
        )

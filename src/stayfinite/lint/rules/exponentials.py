"""Exponentials that overflow."""

from __future__ import annotations

from .. import values as v
from ..context import Context
from ..operation import Operation
from .registry import on


@on("exp")
def exponential_of_unbounded(op: Operation, ctx: Context) -> None:
    x = op.first
    if ctx.is_foreign(x) or x.has(v.BOUNDED | v.FIXED) or ctx.is_tested(op, x):
        return
    if x.has(v.LOGVAR):
        words = "a log-variance above 88 overflows float32 (11 in float16)"
    elif x.has(v.LOGRATIO):
        words = "the ratio of two probabilities overflows where the log-ratio is above 88"
    elif x.has(v.UNBOUNDED):
        words = "the output of a layer or a product is not bounded, exp overflows above 88"
    else:
        return
    if ctx.is_grad and not x.has(v.NOGRAD):
        ctx.report("SF105", op.node, words, default=False)


@on("div")
def softmax_by_hand(op: Operation, ctx: Context) -> None:
    if len(op.args) < 2:
        return
    a, b = op.args[:2]
    if a.has(v.EXP) and b.has(v.SUMEXP) and not a.has(v.BOUNDED) and not ctx.is_foreign(a, b):
        ctx.report(
            "SF106",
            op.node,
            "exp overflows and inf / inf is NaN; all of them underflow and 0 / 0 is NaN",
            default=ctx.is_grad,
            remedy="softmax",
        )

"""Means over nothing, deviations of one element, unreachable targets."""

from __future__ import annotations

import ast

from .. import values as v
from ..context import Context
from ..names import is_evaluation
from ..operation import Operation
from ..vocabulary import LOSSES
from .registry import on


@on("mean", "std", "var", "median", "min", "max", *sorted(LOSSES))
def reduction_of_selection(op: Operation, ctx: Context) -> None:
    x = op.first
    if not x.has(v.SELECTED) or ctx.is_foreign(x) or ctx.is_tested(op, x):
        return
    if op.name in ("min", "max") or _keeps_elements(op):
        return
    ctx.report(
        "SF133",
        op.node,
        "where the mask selects nothing, the mean is 0 / 0",
        default=ctx.is_differentiated and op.name != "median" and ctx.is_sure(x),
    )


def _keeps_elements(op: Operation) -> bool:
    """`reduction="sum"` or `"none"`, and a mean over another dimension."""
    reduction = op.keywords.get("reduction")
    if isinstance(reduction, ast.Constant):
        return reduction.value in ("sum", "none")
    if reduction is not None:
        return True
    dim = op.number(1, "dim", "axis")
    return op.name in ("mean", "std", "var") and dim is not None and dim != 0


@on("std", "var")
def deviation_of_one(op: Operation, ctx: Context) -> None:
    """The sample deviation over the batch: the last batch may have one row."""
    if ctx.is_foreign(op.first) or op.first.has(v.SELECTED) or is_evaluation(ctx.name):
        return
    dim = op.number(1, "dim", "axis")
    if (
        dim != 0
        or not ctx.has_gradient(op.first)
        or _is_population(op)
        or ctx.is_tested(op, op.first)
    ):
        return
    ctx.report(
        "SF132", op.node, "over a batch of one row the sample deviation is 0 / 0", default=False
    )


def _is_population(op: Operation) -> bool:
    for name in ("unbiased", "correction", "ddof"):
        node = op.keywords.get(name)
        if node is not None:
            return not (isinstance(node, ast.Constant) and node.value in (True, 1))
    node = op.expression(2)
    return isinstance(node, ast.Constant) and node.value is False


@on("cross_entropy", "nll_loss")
def all_targets_ignored(op: Operation, ctx: Context) -> None:
    if "ignore_index" not in op.keywords or _keeps_elements(op) or ctx.is_tested(op):
        return
    ctx.report("SF134", op.node, "a batch whose targets are all ignored gives 0 / 0", default=False)


@on("ctc_loss", "CTCLoss")
def infeasible_alignment(op: Operation, ctx: Context) -> None:
    if not op.home.startswith("torch"):
        return
    node = op.keywords.get("zero_infinity")
    is_position = len(op.nodes) > (6 if op.name == "ctc_loss" else 2)
    if is_position or "**" in op.keywords:
        return
    if node is None or (isinstance(node, ast.Constant) and node.value is False):
        ctx.report(
            "SF135",
            op.node,
            "a target longer than its input has no alignment, and the loss is inf",
            remedy="zero_infinity",
        )

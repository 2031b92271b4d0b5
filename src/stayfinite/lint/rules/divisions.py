"""Divisions by values that can be exactly 0."""

from __future__ import annotations

import ast

from .. import values as v
from ..context import Context
from ..operation import Operation, is_same, names_in
from ..values import Value
from .registry import on


@on("div")
def division_by_zero(op: Operation, ctx: Context) -> None:
    if len(op.args) < 2:
        return
    a, b = op.args[:2]
    if b.has(v.SAFE | v.PY | v.NP | v.FIXED) or a.has(v.NP) or ctx.is_tested(op, b):
        return
    if b.has(v.COUNT):
        _by_count(op, ctx, a, b)
    elif b.has(v.NORM | v.STD):
        _by_norm(op, ctx, a, b)
    elif b.has(v.ODDS):
        ctx.report(
            "SF114", op.node, "1 - p is 0 once the probability has saturated", ctx.is_sure(b)
        )
    elif b.has(v.RANGE):
        ctx.report("SF113", op.node, "the range of equal values is 0", default=False)
    elif b.has(v.ZERO | v.PROBSUM | v.SUM) and not b.has(v.SUMEXP):
        ctx.report("SF113", op.node, "a sum can be exactly 0", default=False)


def _by_count(op: Operation, ctx: Context, a: Value, b: Value) -> None:
    if not b.has(v.ZERO):
        return  # a name alone does not show where the count comes from
    if b.has(v.NAMED) and _is_own_sum(op):
        ctx.report("SF113", op.node, "weights that are all 0 have a sum of 0", default=False)
        return
    ctx.report(
        "SF111",
        op.node,
        "the count is 0 where nothing is selected, and 0 / 0 is NaN",
        default=ctx.is_differentiated and _is_mean(a) and _is_plain_count(op, ctx, b),
        remedy="floor_count" if ctx.is_sure(b) else None,
    )


def _is_mean(a: Value) -> bool:
    """A sum in the numerator: a mean over what was counted, not a share or a scale."""
    return a.has(v.SUM) and not a.has(v.COUNT)


def _is_plain_count(op: Operation, ctx: Context, b: Value) -> bool:
    """The sum of a mask that was computed here, or of a parameter row by row."""
    if ctx.is_sure(b):
        return True
    return not b.has(v.LOCAL) and _is_by_row(b.node if b.node is not None else op.nodes[1])


def _is_by_row(node: ast.expr) -> bool:
    """`mask.sum(1)`: one row may be empty; a whole batch is rarely."""
    sums = [n for n in ast.walk(node) if isinstance(n, ast.Call) and _is_sum(n)]
    dims = [
        d
        for n in sums
        for d in (*n.args, *(k.value for k in n.keywords if k.arg in ("dim", "axis")))
    ]
    return any(ast.unparse(d) in ("1", "2", "-1", "-2") for d in dims)


def _is_sum(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "sum"


def _by_norm(op: Operation, ctx: Context, a: Value, b: Value) -> None:
    words = (
        "a norm is 0 for a zero vector" if b.has(v.NORM) else "a deviation is 0 for equal values"
    )
    ctx.report(
        "SF112",
        op.node,
        f"{words}, and 0 / 0 is NaN",
        default=ctx.is_differentiated and ctx.has_gradient(a, b) and _is_likely_zero(b),
        remedy="floor_norm",
    )


def _is_likely_zero(b: Value) -> bool:
    """The norm of an embedding is rarely 0; that of a difference, or a deviation, may be."""
    return b.has(v.STD | v.DIFFERENCE | v.RELU) and not b.has(v.NAMED)


def _is_own_sum(op: Operation) -> bool:
    """`w / w.sum()`: normalized weights, not a mean over a count."""
    names = set(names_in(op.nodes[0]))
    return bool(names) and names == set(names_in(op.nodes[1])) - {"dim"}


@on("div")
def odds(op: Operation, ctx: Context) -> None:
    """p / (1 - p), for any p."""
    if len(op.nodes) < 2 or op.args[1].has(v.ODDS | v.SAFE | v.PY) or op.args[0].has(v.PY | v.NP):
        return
    below = op.nodes[1]
    if not isinstance(below, ast.BinOp) or not isinstance(below.op, ast.Sub):
        return
    is_one = isinstance(below.left, ast.Constant) and below.left.value == 1
    if is_one and is_same(op.nodes[0], below.right) and not ctx.is_tested(op):
        ctx.report("SF114", op.node, "1 - p is 0 once p has rounded to 1", default=False)

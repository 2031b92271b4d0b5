"""Masks: fully masked rows, and fill values beyond the dtype."""

from __future__ import annotations

import ast

from .. import values as v
from ..context import Context
from ..operation import Operation
from .registry import on

_HALF_LIMIT = 65504.0


@on("softmax", "log_softmax", "logsumexp")
def fully_masked_row(op: Operation, ctx: Context) -> None:
    x = op.first
    if x.has(v.NEGINF) and not ctx.is_tested(op, x):
        ctx.report(
            "SF131",
            op.node,
            "a row in which everything is masked is -inf from end to end, and becomes NaN",
            default=False,
        )


@on("multihead_attention")
def fully_padded_keys(op: Operation, ctx: Context) -> None:
    mask = op.keywords.get("key_padding_mask")
    if mask is None or isinstance(mask, ast.Constant) or ctx.is_tested(op):
        return
    words = "a query whose keys are all padding attends to nothing, and becomes NaN"
    ctx.report("SF131", op.node, words, default=False)


@on("cross_entropy")
def smoothing_over_masked_classes(op: Operation, ctx: Context) -> None:
    smoothing = op.number(99, "label_smoothing")
    if op.first.has(v.NEGINF | v.LOWEST) and smoothing:
        ctx.report(
            "SF137",
            op.node,
            "label smoothing gives mass to classes that are masked out, and the loss is inf",
        )


@on("masked_fill", "where", "add", "mul", "full", "full_like")
def mask_beyond_half(op: Operation, ctx: Context) -> None:
    is_half = any(x.has(v.HALF) for x in op.args)
    for x in (*op.args[1:], *op.values.values()):
        if is_half and x.number is not None and abs(x.number) > _HALF_LIMIT:
            ctx.report(
                "SF151",
                op.node,
                f"{x.number:g} is beyond float16, whose limit is 65504",
            )
            return

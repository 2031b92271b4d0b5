"""Numbers beyond half precision, and epsilons without effect."""

from __future__ import annotations

from .. import values as v
from ..context import Context
from ..operation import Operation
from .registry import on

_OPTIMIZERS = ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adamax", "Adadelta")

_NORMS = (
    "LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d",
    "InstanceNorm2d", "layer_norm", "rms_norm", "group_norm", "batch_norm", "normalize",
)  # fmt: skip


@on("add")
def epsilon_that_vanishes(op: Operation, ctx: Context) -> None:
    if len(op.args) < 2:
        return
    for x, eps in (op.args[:2], op.args[1::-1]):
        if x.has(v.WIDE | v.PY | v.NP) or eps.number is None or not 0 < eps.number < 3e-8:
            continue
        if x.has(v.HALF) or ctx.module.uses_half:
            ctx.report("SF152", op.node, f"{eps.number:g} is 0 in float16", x.has(v.HALF))
            return


@on("clamp", "clamp_min")
def floor_that_vanishes(op: Operation, ctx: Context) -> None:
    low = op.number(1, "min")
    high = op.number(2, "max") if op.name == "clamp" else None
    if op.first.has(v.HALF) and low is not None and 0 < low < 3e-8:
        ctx.report("SF152", op.node, f"the floor {low:g} is 0 in float16")
    elif high is not None and 0 < 1 - high < 1.9e-3 and not op.first.has(v.WIDE):
        words = f"the ceiling {high:.9g} rounds to 1 in half precision"
        if _rounds_to_one(high, op) or ctx.module.uses_half:
            ctx.report("SF152", op.node, words, _rounds_to_one(high, op))


def _rounds_to_one(high: float, op: Operation) -> bool:
    return op.first.has(v.BF16) or (op.first.has(v.HALF) and 1 - high < 2.4e-4)


@on(*_OPTIMIZERS)
def optimizer_without_epsilon(op: Operation, ctx: Context) -> None:
    if op.number(99, "eps") == 0:
        words = "a parameter whose gradients were all 0 gives 0 / 0 in the step"
        ctx.report("SF164", op.keywords["eps"], words)


@on(*_NORMS)
def layer_without_epsilon(op: Operation, ctx: Context) -> None:
    if op.number(99, "eps") == 0:
        ctx.report("SF164", op.keywords["eps"], "a row of equal values or zeros gives 0 / 0")

"""Numbers that half precision cannot hold, and epsilons that do nothing."""

from __future__ import annotations

from .. import values as v
from ..context import Context
from ..operation import Operation
from .registry import on

_OPTIMIZERS = ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adamax", "Adadelta")


@on("add")
def epsilon_that_vanishes(op: Operation, ctx: Context) -> None:
    if len(op.args) < 2:
        return
    for x, eps in (op.args[:2], op.args[1::-1]):
        if x.has(v.HALF) and eps.number is not None and 0 < eps.number < 3e-8:
            ctx.report("SF152", op.node, f"{eps.number:g} is 0 in float16", remedy=None)
            return


@on("clamp", "clamp_min")
def floor_that_vanishes(op: Operation, ctx: Context) -> None:
    low = op.number(1, "min")
    high = op.number(2, "max") if op.name == "clamp" else None
    if op.first.has(v.HALF) and low is not None and 0 < low < 3e-8:
        ctx.report("SF152", op.node, f"the floor {low:g} is 0 in float16")
    elif high is not None and _rounds_to_one(high, op):
        ctx.report("SF152", op.node, f"the ceiling {high:.9g} rounds to 1 in half precision")


def _rounds_to_one(high: float, op: Operation) -> bool:
    if not 0 < 1 - high:
        return False
    return (op.first.has(v.HALF) and 1 - high < 2.4e-4) or (
        op.first.has(v.BF16) and 1 - high < 1.9e-3
    )


@on(*_OPTIMIZERS)
def optimizer_without_epsilon(op: Operation, ctx: Context) -> None:
    if op.number(99, "eps") == 0:
        ctx.report(
            "SF164",
            op.keywords["eps"],
            "a parameter whose gradients were all 0 gives 0 / 0 in the step",
        )

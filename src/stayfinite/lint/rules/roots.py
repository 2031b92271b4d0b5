"""Roots, powers and inverse functions at the edge of their domain."""

from __future__ import annotations

import ast

from .. import values as v
from ..context import Context
from ..operation import Operation
from ..values import Value
from .registry import on

_AT_ZERO = v.SUMSQ | v.SQUARE | v.ABS | v.DIFFERENCE
"""Not relu: its backward is 0 where it is off, for any incoming gradient."""


@on("sqrt", "rsqrt")
def root_at_zero(op: Operation, ctx: Context) -> None:
    x = op.first
    if ctx.is_foreign(x) or x.has(v.SAFE | v.FIXED) or ctx.is_tested(op, x):
        return
    if x.has(v.MOMENT):
        ctx.report(
            "SF125",
            op.node,
            "E[x^2] - E[x]^2 rounds to below 0 for equal values, and its root is NaN",
            default=True,
            remedy="floor_root",
        )
    elif x.has(_AT_ZERO) and ctx.has_gradient(x):
        ctx.report(
            "SF121",
            op.node,
            "the derivative of a root at 0 is infinite, and 0 * inf is NaN",
            default=ctx.is_differentiated and not x.has(v.NAMED | v.NOGRAD) and _is_likely_zero(x),
            remedy="floor_root",
        )
    elif op.name == "rsqrt" and x.has(v.COUNT | v.NORM | v.STD):
        ctx.report("SF122", op.node, "1 / sqrt(0) is inf", ctx.is_sure(x) and ctx.is_differentiated)
    elif not x.facts and ctx.is_differentiated:
        ctx.report("SF121", op.node, "nothing here keeps it above 0", default=False)


@on("hypot")
def hypotenuse(op: Operation, ctx: Context) -> None:
    if ctx.has_gradient(*op.args) and not ctx.is_foreign(*op.args) and not ctx.is_tested(op):
        ctx.report(
            "SF121",
            op.node,
            "at (0, 0) the derivative is 0 / 0, which is NaN",
            default=ctx.is_differentiated,
        )


@on("pow")
def power_below_one(op: Operation, ctx: Context) -> None:
    x = op.first
    exponent = op.number(1, "exponent")
    if ctx.is_foreign(x) or x.has(v.SAFE | v.PY | v.FIXED) or ctx.is_tested(op, x):
        return
    if exponent is None:
        _unknown_power(op, ctx, x)
    elif exponent < 0 and x.has(v.COUNT | v.NORM | v.STD | v.ZERO):
        ctx.report("SF122", op.node, "0 to a negative power is inf", ctx.is_sure(x))
    elif 0 < exponent < 1 and x.has(_AT_ZERO | v.PROB) and ctx.has_gradient(x):
        ctx.report(
            "SF122",
            op.node,
            "the derivative of a power below 1 is infinite at 0",
            default=ctx.is_differentiated and ctx.is_sure(x) and _is_likely_zero(x),
        )


def _is_likely_zero(x: Value) -> bool:
    """A difference is 0 if two things are equal."""
    return x.has(v.DIFFERENCE) and x.has(v.NONNEG) and x.has(v.SUMSQ | v.SQUARE | v.ABS)


def _unknown_power(op: Operation, ctx: Context, x: Value) -> None:
    """A learned exponent: problematic below 1 at 0, or at a negative base."""
    node = op.expression(1, "exponent")
    if isinstance(node, ast.Attribute) and ctx.is_differentiated and not x.has(v.PY | v.EXP):
        ctx.report(
            "SF122", op.node, "NaN for a base below 0, or at 0 where the power is below 1", False
        )


@on("acos", "asin")
def arc_of_cosine(op: Operation, ctx: Context) -> None:
    x = op.first
    if ctx.is_foreign(x) or x.has(v.FIXED) or ctx.is_tested(op, x):
        return
    if x.has(v.SAFE | v.BOUNDED) and not x.has(v.COS | v.ARC):
        return
    if x.has(v.ARC):
        words = "at exactly 1 the derivative is infinite; beyond it 0 * inf is NaN"
        is_default = ctx.is_differentiated and ctx.has_gradient(x)
    else:
        words = "a cosine rounds to beyond 1 (NaN), and at 1 the derivative is infinite"
        is_default = x.has(v.COS) and ctx.is_grad
    ctx.report("SF123", op.node, words, default=is_default, remedy="bound_arc")


@on("atanh", "logit")
def inverse_at_saturation(op: Operation, ctx: Context) -> None:
    x = op.first
    if ctx.is_foreign(x) or x.has(v.SAFE | v.FIXED) or ctx.is_tested(op, x):
        return
    if op.name == "logit" and (len(op.args) > 1 or "eps" in op.keywords):
        return
    if x.has(v.BOUNDED) and not x.has(v.TANH | v.PROB):
        return
    words = "tanh rounds to exactly 1" if op.name == "atanh" else "a probability rounds to 0 or 1"
    ctx.report("SF126", op.node, f"{words}, and the result is inf", x.has(v.TANH | v.SIGMOID))


@on("svd", "eigh", "eig", "symeig")
def decomposition_with_gradient(op: Operation, ctx: Context) -> None:
    if op.home and not op.home.startswith("torch"):
        return
    if ctx.is_foreign(op.first) or op.first.has(v.FIXED) or not ctx.has_gradient(op.first):
        return
    if ctx.is_grad and _uses_vectors(ctx.statement):
        ctx.report(
            "SF141",
            op.node,
            "equal eigenvalues or singular values make the gradient of the vectors infinite",
            default=False,
        )


def _uses_vectors(statement: ast.stmt | None) -> bool:
    """`_, s, _ = svd(x)` has a finite derivative."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
        return True
    names = [t.id if isinstance(t, ast.Name) else "" for t in statement.targets[0].elts]
    vectors = names[1:] if len(names) == 2 else [names[0], names[-1]]
    return any(not name.startswith("_") for name in vectors)

"""The forward is finite, its derivative at that point is not."""

from __future__ import annotations

import re

from ..evidence import Evidence
from ..registry import Finding, rule
from ..rewrite import SAFE
from ..words import here, line_fix, safe_fix

_POLES = ("div", "reciprocal", "rsqrt", "pow", "log", "addcdiv", "true_divide", "divide")
_NODES = {
    "Sqrt": "sqrt", "Pow": "pow", "Acos": "acos", "Asin": "asin", "Atanh": "atanh", "Std": "std",
    "Var": "var", "LinalgVectorNorm": "norm", "Norm": "norm", "Log": "log", "Div": "div",
}  # fmt: skip
_PRODUCTS = ("mm", "bmm", "addmm", "mul", "sum", "add", "convolution_backward", "matmul", "cumsum")


@rule("singular_gradient")
def infinite_derivative(e: Evidence) -> Finding | None:
    if not e.is_backward or e.birth is None or not e.has_finite_inputs:
        return None
    is_pole = e.kernel in _POLES and _has_zero(e)
    if not is_pole and (e.kernel in _PRODUCTS or (e.is_overflow and e.largest_input > 1e15)):
        return None
    if e.kernel in _PRODUCTS:
        return None
    base = re.sub(r"Backward\w*$", "", e.node)
    op = _NODES.get(base)
    confidence = 0.85 if is_pole else 0.6
    if e.is_half_birth:
        confidence = {"finite": 0.5, "nonfinite": 0.9}.get(
            e.results.get("higher_precision", ""), 0.65
        )
    why = "its derivative stays finite at the point where the plain one is infinite or 0 / 0"
    fixes = [safe_fix(e, op, why)] if op in SAFE and op else []
    fixes.append(
        line_fix(
            e,
            f"or keep the argument of {op or base} away from the singular point (+ eps inside, a clamp "
            "just inside the domain, or the squared form that needs no root)",
            "the singular point is reached by ordinary data: equal pairs, zero vectors, saturated "
            "cosines",
        )
    )
    return Finding(
        confidence=confidence,
        sentence=f"The forward value {here(e)} is finite, but the derivative of {op or base} at that "
        "point is infinite or undefined.",
        fixes=tuple(fixes),
        wants=("higher_precision",) if e.is_half_birth else (),
    )


def _has_zero(e: Evidence) -> bool:
    stats = e.at_bad("tensor2", "other") or e.at_bad("self")
    if stats is None:
        return False
    return stats.num_zero > 0 or (stats.abs_max is not None and stats.abs_max < 1e-15)

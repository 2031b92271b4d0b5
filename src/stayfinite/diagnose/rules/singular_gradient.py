"""The forward is finite, its derivative at that point is not."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, safe_fixes

_POLES = ("div", "reciprocal", "rsqrt", "pow", "log", "addcdiv", "true_divide", "divide")
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
    if e.was_bad_before and e.forward_name in ("log", "log1p", "log2", "log10", "div"):
        return None  # the forward was not finite: its own cause says more
    name = e.forward_name
    order = int(e.fact("derivative_order"))
    confidence = 0.85 if is_pole else 0.6
    if e.is_half_birth:
        confidence = {"finite": 0.5, "nonfinite": 0.9}.get(
            e.results.get("higher_precision", ""), 0.65
        )
    which = {0: "derivative", 2: "second derivative", 3: "third derivative"}.get(
        order, "derivative"
    )
    return Finding(
        confidence=confidence,
        sentence=f"The forward value {here(e)} is finite, but the {which} of {name} at that "
        "point is infinite or undefined.",
        fixes=_fixes(e, name, is_higher=order > 1),
        wants=("higher_precision",) if e.is_half_birth else (),
    )


def _fixes(e: Evidence, name: str, is_higher: bool) -> tuple[Fix, ...]:
    why = "its derivative stays finite at the point where the plain one is infinite or 0 / 0"
    # The safe operators promise a finite first derivative, not a second.
    first = () if is_higher else safe_fixes(e, name, why)
    return (
        *first,
        line_fix(
            e,
            f"{'or ' if first else ''}keep the argument of {name} {here(e)} away from the singular point "
            "(+ eps inside, a clamp just inside the domain, or the squared form that needs no root)",
            "the singular point is reached by ordinary data: equal pairs, zero vectors, saturated "
            "cosines",
        ),
    )


def _has_zero(e: Evidence) -> bool:
    stats = e.at_bad("tensor2", "other") or e.at_bad("self")
    if stats is None:
        return False
    return stats.num_zero > 0 or (stats.abs_max is not None and stats.abs_max < 1e-15)

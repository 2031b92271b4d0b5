"""The forward is finite, its derivative at that point is not."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, safe_fixes

_POLES = ("div", "reciprocal", "rsqrt", "pow", "log", "addcdiv", "true_divide", "divide")
_ROOT = "+ eps under the root, or the squared form that needs no root"
_EDGE = "x.clamp(-1 + 1e-6, 1 - 1e-6), or atan2, which has no such edge"
_AWAY = {
    "sqrt": _ROOT, "norm": _ROOT, "std": _ROOT, "acos": _EDGE, "asin": _EDGE, "atanh": _EDGE,
    "pow": "x.clamp(min=1e-6), or a whole exponent",
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
    if e.was_bad_before and e.forward_name in ("log", "log1p", "log2", "log10", "div"):
        return None  # the forward was not finite, so its own cause is more precise
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
        facts=_how_many(e),
        fixes=_fixes(e, name, is_higher=order > 1),
        wants=("higher_precision",) if e.is_half_birth else (),
    )


def _fixes(e: Evidence, name: str, is_higher: bool) -> tuple[Fix, ...]:
    why = "its derivative stays finite at the point where the plain one is infinite or 0 / 0"
    # The safe operators guarantee a finite first derivative, but not a second.
    first = () if is_higher else safe_fixes(e, name, why)
    return (
        *first,
        line_fix(
            e,
            f"{'or ' if first else ''}keep the argument of {name} {here(e)} away from the singular point: "
            f"{_AWAY.get(name, 'a small epsilon inside, or a clamp just inside the domain')}",
            "the singular point is reached by ordinary data: equal pairs, zero vectors, saturated "
            "cosines",
        ),
    )


def _how_many(e: Evidence) -> tuple[str, ...]:
    stats = e.birth.outputs[0].stats if e.birth is not None and e.birth.outputs else None
    if stats is None or stats.num_elements < 2:
        return ()
    is_one = stats.num_nonfinite == 1
    return (
        f"{stats.num_nonfinite} of {stats.num_elements} elements {'is' if is_one else 'are'} at that "
        "point",
    )


def _has_zero(e: Evidence) -> bool:
    stats = e.at_bad("tensor2", "other") or e.at_bad("self")
    if stats is None:
        return False
    return stats.num_zero > 0 or (stats.abs_max is not None and stats.abs_max < 1e-15)

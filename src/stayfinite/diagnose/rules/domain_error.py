"""A function outside of its domain."""

from __future__ import annotations

from ...records import TensorStats
from ..evidence import Evidence
from ..registry import Finding, rule
from ..rewrite import SAFE
from ..words import here, line_fix, safe_fix, span

_BELOW_ZERO = (
    "log",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "lgamma",
    "digamma",
    "xlogy",
    "special_entr",
)
_BELOW_MINUS_ONE = ("log1p",)
_WITHIN_ONE = ("acos", "asin", "atanh", "erfinv", "arccos", "arcsin", "arctanh")


@rule("domain_error")
def outside(e: Evidence) -> Finding | None:
    if e.birth is None or not (e.made_nan or e.kernel in _WITHIN_ONE):
        return None
    x = e.at_bad("other") if e.kernel == "xlogy" else e.at_bad("self", "input")
    if x is None or x.min is None or x.max is None:
        return None
    allowed = _allowed(e, x)
    if allowed is None:
        return None
    op = "pow" if e.kernel.startswith("pow") else e.kernel
    why = "it gives the value at the edge of the domain, and a zero gradient beyond it"
    fix = safe_fix(e, op, why) if op in SAFE else line_fix(
        e, f"keep the argument of {op} {here(e)} inside its domain (clamp it, or parametrize it so "
        "that it cannot leave: softplus, relu, sigmoid)", why)  # fmt: skip
    confidence = 0.9
    if e.is_backward:
        confidence = 0.5
    if e.has_diverged >= 0.9:
        confidence = 0.6
    return Finding(
        confidence=confidence,
        sentence=f"{e.birth.op} {here(e)} was given {span(x)} where {allowed} is allowed.",
        facts=_cancellation(e),
        fixes=(fix,),
    )


def _allowed(e: Evidence, x: TensorStats) -> str | None:
    assert x.min is not None and x.max is not None
    if e.kernel in _BELOW_ZERO:
        return "0 and above" if x.min < 0 else None
    if e.kernel in _BELOW_MINUS_ONE:
        return "-1 and above" if x.min < -1 else None
    if e.kernel in _WITHIN_ONE:
        is_open = e.kernel in ("atanh", "erfinv", "arctanh")
        outside = max(abs(x.min), abs(x.max))
        return "-1 to 1" if outside > 1 or (is_open and outside == 1) else None
    if e.kernel in ("acosh", "arccosh"):
        return "1 and above" if x.min < 1 else None
    if e.kernel == "logit":
        return "0 to 1" if x.min < 0 or x.max > 1 else None
    if e.kernel.startswith("pow"):
        return "0 and above (the exponent is fractional)" if x.min < 0 else None
    return None


def _cancellation(e: Evidence) -> tuple[str, ...]:
    x = e.at_bad("self")
    if e.kernel in ("sqrt", "log") and x is not None and x.max is not None and -1e-2 < x.max < 0:
        return (
            "the argument is only just negative: a difference that cancels, like E[x^2] - E[x]^2",
        )
    return ()

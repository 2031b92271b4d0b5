"""An epsilon or small value rounds to zero in half precision and is then divided by or logged."""

from __future__ import annotations

from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, log_fixes, operator

_LOGS = ("log", "log2", "log10", "log1p", "logit", "xlogy")
_DIVIDES = ("div", "reciprocal", "rsqrt", "pow", "addcdiv", "true_divide", "remainder", "fmod")


@rule("low_precision_underflow")
def rounds_to_zero(e: Evidence) -> Finding | None:
    if e.birth is None or not e.is_half_birth or e.is_in_optimizer:
        return None
    if e.kernel not in _LOGS + _DIVIDES:
        return None
    x = e.at_bad("tensor2", "other") if e.kernel in ("div", "addcdiv", "true_divide") else None
    x = x or e.at_bad("self")
    if x is None:
        return None
    is_zero = x.num_zero > 0 or e.kernel in ("log1p", "logit")
    if not is_zero:
        return None
    is_log = e.kernel in _LOGS and not e.is_backward
    outcome = e.results.get("higher_precision")
    confidence = {"finite": 0.95, "nonfinite": 0.2}.get(outcome or "", 0.75)
    smallest = "6e-08" if e.dtype == "float16" else "1e-38, and it has only 8 bits next to 1"
    return Finding(
        confidence=confidence,
        sentence=f"{operator(e)} {here(e)} meets an exact zero in {e.dtype} that is not zero in "
        f"float32: an epsilon or a small number was rounded away ({e.dtype} holds nothing below "
        f"{smallest}).",
        fixes=(
            *(log_fixes(e) if is_log else ()),
            line_fix(
                e,
                "do this part in float32 (x.float() before it), or take the epsilon from "
                "stayfinite.numerics.eps_for(x), which fits the dtype",
                "eps=1e-8 is 0 in float16, and 1 - 1e-4 is 1 in bfloat16; in float32 the same step is "
                "finite",
                experiment="higher_precision",
            ),
        ),
        wants=("higher_precision",),
        proof="higher_precision",
    )

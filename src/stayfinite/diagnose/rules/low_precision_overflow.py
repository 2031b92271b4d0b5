"""Too large for float16 (or bfloat16), but not for float32."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, is_log_of_probability, line_fix, log_fixes, num


@rule("low_precision_overflow")
def beyond_half(e: Evidence) -> Finding | None:
    if e.birth is None or not e.is_half_birth or not e.is_overflow:
        return None
    if _is_pole(e):
        return None
    confidence = 0.8 if e.dtype == "float16" else 0.35
    outcome = e.results.get("higher_precision")
    if outcome == "finite":
        confidence = 0.93 if e.dtype == "float16" else 0.6
    elif outcome == "nonfinite":
        confidence = 0.3
    if e.has_diverged >= 0.75 and e.dtype == "bfloat16":
        confidence = min(confidence, 0.4)
    if e.scale.factor is not None and e.is_backward:
        confidence = min(confidence, 0.6)
    is_cast = e.kernel == "_to_copy"
    what = f"The cast to {e.dtype}" if is_cast else f"{e.birth.op}"
    return Finding(
        confidence=confidence,
        sentence=f"{what} {here(e)} makes a number beyond {num(e.limit)}, the largest that {e.dtype} "
        f"holds, out of finite inputs of up to {num(e.largest_input)}. In float32 it is an ordinary "
        "number.",
        fixes=(
            line_fix(
                e,
                "run this part in float32: with torch.autocast(device_type, enabled=False) and "
                ".float() on its inputs, or use bfloat16, which has the range of float32",
                "the same step in float32 is finite",
                experiment="higher_precision",
            ),
            _second_fix(e),
        ),
        wants=("higher_precision",),
        proof="higher_precision",
    )


def _second_fix(e: Evidence) -> Fix:
    if e.is_backward and is_log_of_probability(e.location.source):
        return log_fixes(e)[0]  # there the 1/p of log(p) cancels
    return Fix(
        title="scale before the product instead of after it, or normalize the inputs",
        why="attention scores divided first, features of ordinary size and means instead of "
        "sums stay within the range",
    )


def _is_pole(e: Evidence) -> bool:
    if e.kernel in ("log", "log1p", "log2", "log10", "logit", "reciprocal", "rsqrt"):
        return True
    d = e.at_bad("other", "tensor2")
    return e.kernel in ("div", "addcdiv") and d is not None and d.num_zero > 0

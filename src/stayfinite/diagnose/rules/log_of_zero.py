"""The logarithm of something that has become exactly zero."""

from __future__ import annotations

from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count, here, log_fixes, operator

_LOGS = ("log", "log2", "log10", "log1p", "logit", "xlogy", "log_sigmoid", "special_entr")


@rule("log_of_zero")
def logarithm(e: Evidence) -> Finding | None:
    if e.birth is None or e.kernel not in _LOGS or not e.made_inf or e.is_backward:
        return None
    x = e.at_bad("other") if e.kernel == "xlogy" else e.at_bad("self")
    if x is None or x.min is None or not _is_pole(e.kernel, x.min, x.max):
        return None
    confidence = 0.88
    precision = e.results.get("higher_precision")
    if e.is_half_birth:
        confidence = {"finite": 0.4, "nonfinite": 0.93}.get(precision or "", 0.6)
    if e.has_diverged >= 0.9:
        confidence = min(confidence, 0.6)
    return Finding(
        confidence=confidence,
        sentence=f"{operator(e)} {here(e)} takes the logarithm of {count(x.num_elements, 'value')} that "
        f"{'is' if x.num_elements == 1 else 'are'} exactly {_pole(e.kernel)}: a probability or density "
        f"that underflowed or saturated in {e.dtype or 'float32'}, or an entry that is zero by itself.",
        fixes=log_fixes(e),
        wants=("higher_precision",) if e.is_half_birth else (),
    )


@rule("log_of_zero")
def infinity_that_was_flattened(e: Evidence) -> Finding | None:
    """The logarithm was -inf, a sigmoid or an exponential mapped it to 0, and its derivative is inf."""
    if not e.was_bad_before or e.forward_name not in _LOGS:
        return None
    return Finding(
        confidence=0.88,
        sentence=f"{e.forward_name} {here(e)} takes the logarithm of exactly zero (its argument is "
        f"{_pole(e.forward_name)}) and gives -inf in the forward. What follows flattens that, so the "
        "loss is finite; but the derivative is infinite there, and 0 * inf is NaN.",
        fixes=log_fixes(e),
        wants=("higher_precision",) if e.is_half_birth else (),
    )


def _is_pole(kernel: str, low: float, high: float | None) -> bool:
    if kernel == "log1p":
        return low == -1.0
    if kernel == "logit":
        return low == 0.0 or high == 1.0
    return low == 0.0


def _pole(kernel: str) -> str:
    return {"log1p": "-1", "logit": "0 or 1"}.get(kernel, "zero")

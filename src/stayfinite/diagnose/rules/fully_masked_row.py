"""A softmax or logsumexp over a row in which everything is masked."""

from __future__ import annotations

from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count, here, line_fix

_SOFTMAX = ("_softmax", "_log_softmax", "logsumexp", "_safe_softmax")


@rule("fully_masked_row")
def softmax_over_nothing(e: Evidence) -> Finding | None:
    rows = e.fact("rows_all_neginf")
    if e.birth is None or not rows or e.fact("rows_with_nan_or_posinf"):
        return None
    if not (e.kernel in _SOFTMAX or e.kernel.startswith("_scaled_dot_product")):
        return None
    return _finding(e, f"{count(rows, 'row')} of the scores {'is' if rows == 1 else 'are'}")


@rule("fully_masked_row")
def minus_inf_minus_minus_inf(e: Evidence) -> Finding | None:
    """A softmax by hand, or the backward of logsumexp: both subtract the maximum of the row."""
    if e.birth is None or not e.made_nan or e.kernel not in ("sub", "rsub", "exp", "add"):
        return None
    a, b = e.at_bad("self"), e.at_bad("other")
    if a is None or b is None or a.num_elements == 0:
        return None
    if a.num_neginf != a.num_elements or b.num_neginf != b.num_elements:
        return None
    return _finding(e, "a row is", confidence=0.85)


@rule("fully_masked_row")
def on_the_way(e: Evidence) -> Finding | None:
    """A logsumexp over nothing is -inf; subtracting it makes a NaN."""
    if e.birth is None or e.birth.direction == "optimizer":
        return None
    for link in e.location.chain:
        if link is e.birth:
            break
        if link.facts.get("rows_all_neginf") and not link.facts.get("rows_with_nan_or_posinf"):
            return _finding(e, "a row is", confidence=0.9)
    return None


def _finding(e: Evidence, what: str, confidence: float = 0.96) -> Finding:
    return Finding(
        confidence=confidence,
        sentence=f"{what[0].upper()}{what[1:]} -inf from end to end {here(e)}: everything is masked, "
        "there is nothing to normalize, and the result is NaN. Masks of -inf are fine as long as "
        "each row keeps one entry.",
        fixes=(
            line_fix(
                e,
                "use stayfinite.numerics.masked_softmax, masked_log_softmax or masked_logsumexp with "
                "the mask; attention: stable_attention",
                "they give zeros (and a zero gradient) for a row without a valid entry",
            ),
            line_fix(
                e,
                "or mask with torch.finfo(scores.dtype).min instead of -inf, or drop empty rows",
                "a finite mask leaves a uniform row instead of 0 / 0",
            ),
        ),
    )

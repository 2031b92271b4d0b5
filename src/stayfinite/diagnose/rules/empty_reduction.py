"""A mean over nothing, a sample variance over one."""

from __future__ import annotations

from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix

_SPREAD = ("var", "std", "var_mean", "std_mean", "_native_batch_norm_legit")


@rule("empty_reduction")
def over_nothing(e: Evidence) -> Finding | None:
    if e.birth is None or not e.made_nan:
        return None
    tensors = [s for s in e.tensors if "float" in s.dtype]
    is_empty = bool(tensors) and all(s.num_elements == 0 for s in tensors)
    known = "num_reduced" in e.birth.facts
    if not is_empty and not (known and e.fact("num_reduced") == 0):
        return None
    return Finding(
        confidence=0.96,
        sentence=f"{e.birth.op} {here(e)} averages over no element at all (an empty selection, or "
        "every target ignored): 0 / 0.",
        fixes=(
            line_fix(
                e,
                "use stayfinite.numerics.masked_mean (or masked_cross_entropy), or skip the term when "
                "nothing is selected",
                "a batch in which nothing qualifies is an ordinary batch; its share of the loss is 0",
            ),
        ),
    )


@rule("empty_reduction")
def spread_of_one(e: Evidence) -> Finding | None:
    if e.birth is None or not e.made_nan or e.kernel not in _SPREAD or e.is_backward:
        return None
    correction = e.number("correction")
    if correction is None:
        correction = 1.0
    reduced = e.fact("num_reduced")
    if reduced > max(correction, 1.0) or not e.has_finite_inputs:
        return None
    return Finding(
        confidence=0.96,
        sentence=f"{e.birth.op} {here(e)} is a sample deviation over {int(reduced)} element: it "
        "divides by n - 1 = 0.",
        fixes=(
            line_fix(
                e,
                "use stayfinite.numerics.safe_std or safe_var, or correction=0, or drop_last=True in "
                "the DataLoader",
                "the last batch of an epoch may have a single row",
            ),
        ),
    )

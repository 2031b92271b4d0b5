"""A bad value that a mask or `where` discards returns in the backward as 0 * inf."""

from __future__ import annotations

import re

from ...records import Fix, Link
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count, here, line_fix

_WORDS = {
    "Where": "torch.where",
    "Mul": "a product with 0",
    "Index": "the indexing",
    "IndexSelect": "index_select",
    "MaskedFill": "masked_fill",
    "MaskedSelect": "masked_select",
    "MaskedScatter": "masked_scatter",
    "NanToNum": "nan_to_num",
    "ClampMin": "clamp",
    "ClampMax": "clamp",
    "CopySlices": "an assignment to a slice",
    "IndexPut": "an assignment by index",
    "Slice": "a slice",
    "Select": "an index",
}


@rule("masked_branch_leak")
def zero_times_infinity(e: Evidence) -> Finding | None:
    if not e.is_backward or e.birth is None or e.source is not None:
        return None
    link = _meeting(e)
    total = link.facts.get("gradient_at_bad", 0.0)
    is_masked = 0 < total <= link.facts.get("gradient_discarded_at_bad", 0.0)
    is_hidden = not total and e.fact("forward_was_discarded") > 0
    if not is_masked and not is_hidden:
        return None
    return Finding(
        confidence=0.93 if e.was_bad_before else 0.9,
        sentence=f"The forward never used this value: {_discarder(link)} discards it, so its gradient "
        f"is 0. But the backward still goes through {e.forward_name} {here(e)}, whose derivative there "
        "is infinite, and 0 * inf is NaN.",
        facts=("in the forward, the discarded value itself was not finite",)
        if e.was_bad_before
        else (),
        fixes=_double_where(e),
    )


@rule("masked_branch_leak")
def gap_that_comes_back(e: Evidence) -> Finding | None:
    """A NaN marks a missing value; the loss masks it, but the gradient does not."""
    if not e.is_backward or e.source is None:
        return None
    stats = e.source.outputs[0].stats if e.source.outputs else None
    gaps = count(stats.num_nonfinite, "non-finite value") if stats else "non-finite values"
    name = e.source.outputs[0].name if e.source.outputs else "the batch"
    return Finding(
        confidence=0.93,
        sentence=f"{name} has {gaps}, which {_discarder(_meeting(e))} leaves out of the loss: the loss "
        f"is finite. But the backward still goes through {e.forward_name} {here(e)} with the gap in "
        "it, and 0 * NaN is NaN.",
        fixes=(
            line_fix(
                e,
                "fill the gaps before the arithmetic, and mask the result as now: "
                f"{_variable(name)} = torch.where(seen, {_variable(name)}, 0.0)",
                "a mask behind the operation sets the gradient to 0, but 0 * NaN is NaN; a value that "
                "is filled in first cannot come back",
            ),
        ),
    )


@rule("masked_branch_leak")
def discarded_in_the_forward(e: Evidence) -> Finding | None:
    """The forward made an infinity and discarded it: the loss is finite, but the gradient is not."""
    if e.birth is None or e.birth.direction != "forward" or not e.is_discarded:
        return None
    loss = e.event.loss
    if e.event.symptom != "gradient" or loss is None or loss - loss != 0:
        return None
    return Finding(
        confidence=0.92,
        sentence=f"{e.birth.op} {here(e)} gives an infinite value that a mask or where discards: the "
        "loss is finite. The backward runs through it all the same, and 0 * inf is NaN.",
        fixes=_double_where(e),
    )


def _double_where(e: Evidence) -> tuple[Fix, ...]:
    return (
        line_fix(
            e,
            "mask before the operation, not after it (the double where): "
            "x = torch.where(ok, x, 1.0); y = torch.where(ok, f(x), 0.0)",
            "the operation then never sees the bad argument; an epsilon or a clamp behind it "
            "cannot help. stayfinite.numerics has safe_log, safe_sqrt, safe_exp, safe_div and safe_pow",
        ),
    )


def _discarder(link: Link) -> str:
    """The operator that discarded the value, as written."""
    names = [k.split(" ", 1)[1] for k in link.facts if k.startswith("discarded_by ")]
    words = {_word(name) for name in names}
    return " and ".join(sorted(words)) or "a mask"


def _word(node: str) -> str:
    base = re.sub(r"Backward\d*$", "", node)
    return _WORDS.get(base) or base.lower()


def _variable(name: str) -> str:
    """`y` for a part of the batch without a name of its own."""
    return name if name.isidentifier() and name != "batch" else "y"


def _meeting(e: Evidence) -> Link:
    """The link where the gradient is multiplied by the infinity: the birth, or the next operator of its node."""
    assert e.birth is not None
    for link in e.location.chain:
        is_same = link.op == e.node and link.line == e.location.line
        if link.direction == "backward" and is_same and "gradient_at_bad" in link.facts:
            return link
    return e.birth

"""What a mask or `where` has thrown away comes back in the backward as 0 * inf."""

from __future__ import annotations

import re

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix

_DISCARD = re.compile(
    r"^(Where|MaskedFill|MaskedSelect|MaskedScatter|Clamp|ClampMin|ClampMax|NanToNum|Index|IndexPut|"
    r"IndexSelect|Gather|Mul|Threshold|Relu|Maximum|Minimum|Max|Min|Amax|Amin|Select|Slice|CopySlices|"
    r"Hardtanh|Topk|Sort|Take|TakeAlongDim|Nansum|MaskedFillScalar|EmbeddingBag)Backward"
)
_DERIVATIVE = re.compile(
    r"^(Pow|Abs|Sgn|Sign|Sqrt|Norm|LinalgVectorNorm|Dist|Cdist|Sin|Cos|Tanh|Sigmoid|Exp|Square|Hypot|Acos|"
    r"Asin|SmoothL1Loss|MseLoss|HuberLoss)Backward"
)
"""Nodes whose derivative is zero at some point without anything being thrown away."""


@rule("masked_branch_leak")
def zero_times_infinity(e: Evidence) -> Finding | None:
    if not e.is_backward or e.birth is None:
        return None
    makers, total, zeros = _incoming(e)
    own = e.node
    was_bad = e.fact("forward_was_bad") > 0
    is_all_zero = total > 0 and zeros == total
    others = [m for m in makers if m != own]
    is_masked = any(_DISCARD.match(m) for m in others) and not any(
        _DERIVATIVE.match(m) or m == own for m in makers
    )
    if not (is_all_zero and is_masked) and not (was_bad and (is_all_zero or total == 0)):
        return None
    who = ", ".join(sorted(m.removesuffix("0").removesuffix("1") for m in others)) or "a mask"
    return Finding(
        confidence=0.93 if was_bad and is_all_zero else 0.9,
        sentence=f"The forward never used this value: {_verb(who)} discards it, so its gradient is 0. "
        f"But the backward still runs {own} {here(e)}, whose derivative there is infinite, and "
        "0 * inf is NaN.",
        facts=("in the forward, the discarded value itself was not finite",) if was_bad else (),
        fixes=_double_where(e),
    )


@rule("masked_branch_leak")
def discarded_in_the_forward(e: Evidence) -> Finding | None:
    """The forward made an infinity and threw it away: the loss is fine, the gradient is not."""
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


def _verb(who: str) -> str:
    return who if who == "a mask" else f"a mask ({who})"


def _incoming(e: Evidence) -> tuple[set[str], float, float]:
    """Who zeroed the gradient, and how many of the bad places it is zero at."""
    makers: set[str] = set()
    total = zeros = 0.0
    for link in e.location.chain:
        if link.direction != "backward" or link.op != e.node or link.line != e.location.line:
            continue
        if "gradient_at_bad" in link.facts and total == 0:
            total = link.facts["gradient_at_bad"]
            zeros = link.facts["gradient_zero_at_bad"]
            makers |= {k.split(" ", 1)[1] for k in link.facts if k.startswith("zeroed_by ")}
    return makers, total, zeros

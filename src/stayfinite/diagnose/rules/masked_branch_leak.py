"""What a mask or `where` has thrown away comes back in the backward as 0 * inf."""

from __future__ import annotations

import re

from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix

_DISCARD = re.compile(
    r"^(Where|MaskedFill|MaskedSelect|MaskedScatter|Clamp|ClampMin|ClampMax|NanToNum|Index|IndexPut|"
    r"IndexSelect|Gather|Mul|Threshold|Relu|Maximum|Minimum|Max|Min|Amax|Amin|Select|Slice|CopySlices|"
    r"Hardtanh|Topk|Sort|Take|TakeAlongDim|Nansum|MaskedFillScalar|EmbeddingBag)Backward"
)


@rule("masked_branch_leak")
def zero_times_infinity(e: Evidence) -> Finding | None:
    if not e.is_backward or e.birth is None:
        return None
    makers, total, zeros = _incoming(e)
    own = e.node
    was_bad = e.fact("forward_was_bad") > 0
    is_all_zero = total > 0 and zeros == total
    others = [m for m in makers if m != own]
    is_masked = bool(others) and all(_DISCARD.match(m) for m in makers)
    if not (is_all_zero and is_masked) and not (was_bad and (is_all_zero or total == 0)):
        return None
    who = ", ".join(sorted(m.removesuffix("0").removesuffix("1") for m in others)) or "a mask"
    return Finding(
        confidence=0.93 if was_bad and is_all_zero else 0.9,
        sentence=f"The forward never used this value: {_verb(who)} discards it, so its gradient is 0. "
        f"But the backward still runs {own} {here(e)}, whose derivative there is infinite, and "
        "0 * inf is NaN.",
        facts=("in the forward, the discarded value itself was not finite",) if was_bad else (),
        fixes=(
            line_fix(
                e,
                "mask before the operation, not after it (the double where): "
                "x = torch.where(ok, x, 1.0); y = torch.where(ok, f(x), 0.0)",
                "the operation then never sees the bad argument; an epsilon or a clamp behind it "
                "cannot help. stayfinite.numerics has safe_log, safe_sqrt, safe_div and safe_pow",
            ),
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

"""An unbounded exponential overflows."""

from __future__ import annotations

import math
from dataclasses import replace

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, num, safe_fixes

_BESSEL = ("i0", "i1", "special_i0", "special_i1")
"""Bessel functions grow as the exponential does."""
_EXPS = (
    "exp",
    "expm1",
    "exp2",
    "sinh",
    "cosh",
    "special_expit",
    "softplus",
    "lgamma",
    "mish",
    *_BESSEL,
)


@rule("exp_overflow")
def exponential(e: Evidence) -> Finding | None:
    if e.birth is None or not e.made_inf or not e.has_finite_inputs:
        return None
    if e.kernel.startswith("pow"):
        x = e.at_bad("exponent")
        base = e.at_bad("self")
        is_exp = x is not None and (base is None or (base.abs_max or 0) < 1e3)
        if not is_exp or x is None:
            return None
    elif e.kernel in _EXPS:
        x = e.at_bad("self")
    else:
        return None
    if x is None or x.abs_max is None:
        return None
    confidence = 0.88
    if e.is_half_birth and e.dtype == "float16" and x.abs_max < 88:
        confidence = 0.35  # float32 would not overflow
    if e.has_diverged >= 0.85 and x.abs_max > 1e3:
        confidence = 0.55
    elif e.has_diverged >= 0.9:
        confidence = 0.7
    # The sum of two values at the dtype's limit overflows, so a saturating form does not help.
    saturating = () if _is_added_up(e) else _saturating(e)
    return Finding(
        confidence=confidence,
        sentence=f"{e.kernel if e.kernel in _BESSEL else 'exp'} {here(e)} was given up to {num(x.abs_max)}; {e.dtype or 'float32'} holds the "
        f"exponential of at most {num(math.log(e.limit))}. Nothing bounds its argument.",
        fixes=(
            line_fix(
                e,
                "if it goes into a ratio, a sum or a softmax, stay in log space: logsumexp, log_softmax, "
                "cross_entropy on logits, stayfinite.numerics.info_nce or log_sinkhorn",
                "a ratio or a sum of exponentials never needs the exponentials themselves",
            ),
            *saturating,
            line_fix(
                e,
                "or bound what goes in: stayfinite.numerics.bound(x, low, high) for a log-variance, "
                "BoundedTemperature for a learned temperature",
                "a smooth bound keeps its gradient; a clamp of the loss would kill it",
            ),
        ),
    )


def _is_added_up(e: Evidence) -> bool:
    """Whether the first operator that uses the exponential is a sum."""
    after = [link for link in e.location.chain if link.role in ("carrier", "symptom")]
    return bool(after) and (after[0].op or "").split(".")[-1] in ("sum", "mean", "cumsum")


def _saturating(e: Evidence) -> tuple[Fix, ...]:
    # The experiment has tried a much smaller limit than this.
    fixes = safe_fixes(e, "exp", "it saturates below the dtype's limit instead of overflowing")
    return tuple(replace(fix, experiment=None) for fix in fixes)

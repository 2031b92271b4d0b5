"""A division by exactly zero."""

from __future__ import annotations

import re

from ...records import Fix, TensorStats
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count, here, line_fix, operator, safe_fixes

_HUGE = 1e12
_DIVIDES = ("div", "true_divide", "divide", "addcdiv", "remainder", "fmod", "floor_divide")
_FUSED = re.compile(r"norm(?!al_|al$)|cosine")
_NORMS = ("native_layer_norm", "native_batch_norm", "native_group_norm", "_native_batch_norm_legit",
          "cudnn_batch_norm", "_fused_rms_norm")  # fmt: skip


@rule("zero_denominator")
def division(e: Evidence) -> Finding | None:
    if e.birth is None or e.is_backward or e.is_in_optimizer:
        return None
    d = _denominator(e)
    if d is None:
        return None
    is_zero = d.num_zero > 0
    confidence = 0.9 if is_zero else 0.5
    precision = e.results.get("higher_precision")
    if e.is_half_birth:
        confidence = {"finite": 0.4, "nonfinite": 0.93}.get(precision or "", 0.6)
    if e.has_diverged >= 0.9 and not is_zero:
        confidence = 0.3
    what = "exactly zero" if is_zero else f"as small as {d.abs_max:.3g}"
    number = _num_divisors(e, d)
    return Finding(
        confidence=confidence,
        sentence=f"{operator(e)} {here(e)} divides by {count(number, 'value')} that "
        f"{'is' if number == 1 else 'are'} {what}: a count, degree, norm, deviation or sum of "
        "weights that can vanish.",
        fixes=_fixes(e),
        wants=("higher_precision",) if e.is_half_birth else (),
    )


@rule("zero_denominator")
def division_by_a_plain_zero(e: Evidence) -> Finding | None:
    if e.birth is None or e.is_backward or e.is_in_optimizer or e.kernel not in _DIVIDES:
        return None
    if e.number("other") != 0 or _denominator(e) is not None:
        return None
    return Finding(
        confidence=0.92,
        sentence=f"{operator(e)} {here(e)} divides by the number 0: a length or a count that can "
        "vanish, such as len(x) - 1 for a batch of one.",
        fixes=_fixes(e),
    )


def _num_divisors(e: Evidence, d: TensorStats) -> int:
    """The number of divisors: one for a scalar, however many quotients it corrupts."""
    whole = e.operand("tensor2", "other") or e.operand("self")
    if whole is None or whole.stats is None:
        return d.num_elements
    return max(1, min(d.num_elements, whole.stats.num_zero or whole.stats.num_elements))


def _fixes(e: Evidence) -> tuple[Fix, ...]:
    return (
        *safe_fixes(e, "div", "it gives 0 (and a zero gradient) where the denominator is zero"),
        line_fix(
            e,
            "or keep the denominator away from zero: .clamp(min=1) for a count, "
            "+ stayfinite.numerics.eps_for(x) for a norm or a deviation",
            "an empty group, an isolated node or a constant signal is an ordinary sample",
        ),
    )


@rule("zero_denominator")
def quotient_that_overflows_later(e: Evidence) -> Finding | None:
    """A division by almost zero: the quotient is finite, but a result computed from it (its square) is not."""
    if (
        e.birth is None
        or not e.is_overflow
        or e.is_backward
        or e.is_in_optimizer
        or e.is_half_birth
    ):
        return None
    if e.largest_input < _HUGE or e.has_diverged >= 0.5:
        return None
    if e.results.get("floored_divisor") == "nonfinite":
        return None
    q = e.quotient
    if q is None:
        return Finding(
            confidence=0.3,
            sentence=f"What overflows {here(e)} may have been divided by almost nothing before.",
            fixes=(),
            wants=("floored_divisor",),
        )
    return Finding(
        confidence=0.88,
        sentence=f"The division at {q.file.rpartition('/')[2]}:{q.line} is by a number as small as "
        f"{q.smallest:.3g}, and what is made of the quotient overflows {here(e)}: with the epsilon of "
        "the dtype for a divisor the step is finite.",
        fixes=_fixes(e),
    )


@rule("zero_denominator")
def infinity_that_was_flattened(e: Evidence) -> Finding | None:
    """The quotient was infinite, a sigmoid or an exponential made it finite, but its derivative is not."""
    if not e.was_bad_before or e.forward_name != "div":
        return None
    return Finding(
        confidence=0.86,
        sentence=f"The division {here(e)} is by exactly zero and gives an infinity in the forward. What "
        "follows flattens that, so the loss is finite; but the derivative is infinite there, and "
        "0 * inf is NaN.",
        fixes=_fixes(e),
    )


@rule("zero_denominator")
def weights_that_sum_to_zero(e: Evidence) -> Finding | None:
    if e.birth is None or e.kernel not in ("nll_loss_forward", "nll_loss2d_forward"):
        return None
    if "weight_sum" not in e.birth.facts or e.fact("weight_sum") != 0 or not e.fact("num_reduced"):
        return None
    return Finding(
        confidence=0.92,
        sentence=f"The class weights of all targets in this batch sum to zero, and the loss {here(e)} "
        "divides by that sum.",
        fixes=(
            line_fix(
                e,
                "use stayfinite.numerics.masked_cross_entropy, or reduction='sum' and a division by "
                "max(weight sum, 1)",
                "a batch in which every class has weight zero contributes nothing",
            ),
        ),
    )


@rule("zero_denominator")
def norm_without_epsilon(e: Evidence) -> Finding | None:
    if e.birth is None or e.kernel not in _NORMS or not e.has_finite_inputs or e.is_backward:
        return None
    eps = e.number("eps")
    if eps is None or eps > 1e-30:
        return None
    return Finding(
        confidence=0.9,
        sentence=f"The normalization {here(e)} has eps={eps:g} and was given a constant input: its "
        "variance is zero.",
        fixes=(
            line_fix(e, "give the layer its usual eps=1e-5", "a constant row is an ordinary input"),
        ),
    )


@rule("zero_denominator")
def norm_of_a_zero_vector(e: Evidence) -> Finding | None:
    """A fused operator that divides by a norm, such as weight_norm."""
    if e.birth is None or e.is_backward or not _FUSED.search(e.kernel) or not e.made_nan:
        return None
    if not e.has_finite_inputs or (e.number("eps") or 0.0) > 1e-30:
        return None
    vector = next((o for o in e.birth.inputs if o.stats is not None and o.stats.num_zero), None)
    if vector is None or vector.stats is None:
        return None
    label = vector.label or vector.name
    is_weight = label.startswith("parameter ") or "weight_norm" in e.kernel
    label = f"the weight {label}" if is_weight and not vector.label else label
    title = f"give {label} a start other than zeros"
    why = "a zero vector has no direction"
    if is_weight:
        why += "; for a layer that starts with an output of zero, set the gain to zero instead"
    else:
        title = (
            f"keep the vectors that go into {e.kernel.lstrip('_')} {here(e)} away from zero, or "
            "normalize with torch.nn.functional.normalize(x, eps=1e-6)"
        )
    return Finding(
        confidence=0.88,
        sentence=f"{operator(e)} {here(e)} divides by a norm that is exactly zero: {label} holds "
        f"{vector.stats.num_zero} zeros in {count(vector.stats.num_elements, 'value')}.",
        fixes=(line_fix(e, title, why),),
    )


def _denominator(e: Evidence) -> TensorStats | None:
    """The divisor, if it is (almost) zero."""
    if e.kernel in _DIVIDES:
        d = e.at_bad("tensor2") if e.kernel == "addcdiv" else e.at_bad("other")
    elif e.kernel in ("reciprocal", "rsqrt"):
        d = e.at_bad("self")
    elif e.kernel.startswith("pow"):
        exponent = e.number("exponent")
        d = e.at_bad("self") if exponent is None or exponent < 0 else None
        if d is not None and not d.num_zero:
            return None
    else:
        return None
    if d is None or d.min is None or (d.min < 0 and e.kernel == "rsqrt"):
        return None
    if d.num_zero:
        return d
    is_tiny = d.abs_max is not None and d.abs_max < 1e-15 and e.made_inf and e.has_finite_inputs
    return d if is_tiny else None

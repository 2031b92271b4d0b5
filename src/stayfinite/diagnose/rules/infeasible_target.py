"""The target has probability zero by construction."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count, here, line_fix

_PICKS = (
    "nll_loss_forward", "nll_loss2d_forward", "nll_loss_nd", "gather", "index", "take_along_dim",
    "kl_div", "binary_cross_entropy", "index_select", "take", "select", "logcumsumexp",
)  # fmt: skip
_SUMS = ("sum", "mean", "mul", "dot", "mm", "bmm", "mv", "add", "sub", "neg", "nansum", "addmm")


@rule("infeasible_target")
def no_alignment(e: Evidence) -> Finding | None:
    if "ctc" not in e.kernel.lower() and "ctc" not in e.node.lower():
        return None
    return Finding(
        confidence=0.96,
        sentence="CTC finds no alignment: a target is longer than its input (repeated letters need "
        "one more frame each), so its probability is zero and the loss infinite.",
        fixes=(
            line_fix(
                e,
                "use stayfinite.numerics.ctc_loss, or zero_infinity=True, and drop targets longer than "
                "their inputs",
                "a target that cannot be produced teaches nothing; with it left out the rest of the "
                "batch is fine",
            ),
        ),
    )


@rule("infeasible_target")
def masked_target(e: Evidence) -> Finding | None:
    """A class was masked with -inf on purpose, but it is the target."""
    if e.birth is None or e.is_in_optimizer:
        return None
    has_sentinel = any(c.role == "sentinel" for c in e.location.chain)
    source = e.source
    if not has_sentinel and not (source is not None and (source.label or "").startswith("buffer")):
        return None
    if e.fact("rows_all_neginf") and not e.has_finite_inputs and "softmax" in e.kernel:
        return None
    if e.kernel not in _PICKS + _SUMS:
        return Finding(confidence=0.35, sentence=_SENTENCE.format(here(e)), fixes=_fixes(e))
    return Finding(
        confidence=0.88 if not e.made_nan else 0.7,
        sentence=_SENTENCE.format(here(e)),
        fixes=_fixes(e),
    )


@rule("infeasible_target")
def masked_by_the_smallest_number(e: Evidence) -> Finding | None:
    """The same with a finite mask: the sum of two of the most negative numbers is -inf."""
    if e.birth is None or not e.is_overflow or e.kernel not in _PICKS + _SUMS:
        return None
    for s in e.tensors:
        if s.min is not None and s.min < -0.99 * e.limit:
            n = count(sum(t.num_elements for t in e.tensors[:1]), "value")
            return Finding(
                confidence=0.9,
                sentence=f"Among {n} that are added up {here(e)} are some at the most negative number "
                "of their dtype, a mask. The target puts weight on masked classes (label smoothing "
                "does, on every class), and their sum overflows.",
                fixes=_fixes(e),
            )
    return None


_SENTENCE = (
    "A class was masked with -inf on purpose, and {} the target asks for it (directly, or through "
    "label smoothing or a soft target): its probability is zero by construction and the loss infinite."
)


def _fixes(e: Evidence) -> tuple[Fix, ...]:
    return (
        line_fix(
            e,
            "use stayfinite.numerics.masked_cross_entropy, which spreads smoothing over the allowed "
            "classes only, or keep the target among the allowed classes",
            "no weight can make an impossible target likelier, so it must not be in the loss",
        ),
    )

"""The learning rate makes the updates grow until something overflows."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..searched import clip_fix, is_in_search, rate_fix
from ..words import num

_ABSURD = 1e6
_FAR = 3.0
"""How many times larger than at the start of a step its search has made the weights."""


@rule("lr_divergence")
def runs_away(e: Evidence) -> Finding | None:
    if not can_diverge(e):
        return None
    if e.falls_without_bound:
        return _nothing_bounds_the_loss(e)
    score = e.has_diverged
    if score == 0.0:
        if not e.is_overflow or e.is_first_step or e.is_half_birth:
            return None
        score = 0.3
    # Diverged weights fail on any batch; a special batch fails alone.
    before = e.results.get("previous_batch")
    is_open = score < 0.85
    if is_open and before is not None:
        score = {"nonfinite": min(score + 0.15, 0.85), "finite": 0.7 * score}.get(before, score)
    if e.results.get("smaller_lr") == "nonfinite":
        score *= 0.6  # it diverges at any rate
    return Finding(
        confidence=min(score, 0.92),
        sentence=_sentence(e),
        facts=_other_batches(before),
        fixes=divergence_fixes(e),
        wants=("previous_batch", "smaller_lr") if is_open else ("smaller_lr",),
    )


@rule("lr_divergence")
def has_run_away_unseen(e: Evidence) -> Finding | None:
    """The failing operator is unknown, but the weights are beyond anything that a training makes."""
    w = e.weights
    is_step = e.event.phase not in ("data", "checkpoint", "parameter", "resume")
    if e.birth is not None or e.location.is_reproduced or not is_step or e.is_first_step:
        return None
    if not w.largest > _ABSURD * max(w.first, 1.0):
        return None
    return Finding(
        confidence=0.8,
        sentence=_sentence(e),
        facts=_other_batches(e.results.get("previous_batch")),
        fixes=divergence_fixes(e),
        wants=("smaller_lr",),
    )


@rule("lr_divergence")
def searches_too_far(e: Evidence) -> Finding | None:
    """An optimizer that evaluates its closure several times in one step has gone too far within it."""
    w, kind = e.weights, e.optimizer.get("type", "The optimizer")
    is_far = e.is_overflow and w.searched > _FAR * max(w.largest, 1e-3)
    if not e.location.is_reproduced or not (is_far or is_in_search(e)):
        return None
    has_search = "line_search_fn" in e.optimizer
    fixes = [
        Fix(
            title=f"lower the learning rate of {rates(e)}",
            why="it is the length of the step along the search direction",
        )
    ]
    if kind == "LBFGS" and not has_search:
        fixes[:0] = [
            Fix(
                title='LBFGS: set line_search_fn="strong_wolfe"',
                why="the length of each step is then searched for, and one that makes the loss larger is not taken",
                after='line_search_fn="strong_wolfe"',
            )
        ]
    missing = "" if has_search else ", and no line search holds it back"
    moved = (
        f"up to {num(w.searched)} and evaluated the loss there"
        if is_far
        else "until they were no numbers"
    )
    return Finding(
        confidence=0.9 if w.searched > 10 * max(w.largest, 1e-3) else 0.7,
        sentence=f"Within this step {kind} has moved the weights {moved}; "
        f"the largest weight at its start is {num(w.largest)}. The learning rate of {rates(e)} sets how far it goes{missing}.",
        fixes=tuple(fixes),
    )


def _sentence(e: Evidence) -> str:
    course = story(e)
    if not course:
        return (
            f"Inputs of {num(e.largest_input)} reach this operator and overflow. Neither the loss nor the "
            f"weights had run away; a learning rate of {rates(e)} may still be too high."
        )
    rate = f"The learning rate of {rates(e)}" if e.event.lr else "The learning rate"
    return (
        f"The training had run away before this step: {course}. {rate} makes each update overshoot "
        "the one before, until something overflows."
    )


def _nothing_bounds_the_loss(e: Evidence) -> Finding:
    """The optimizer works correctly, but the objective is unbounded."""
    shown = " -> ".join(num(r.loss) for r in e.history[-4:])
    return Finding(
        confidence=0.5,
        sentence=f"The loss itself falls without end ({shown}), and the weights grow with it: the "
        f"largest is {num(e.weights.largest)} where it was {num(e.weights.first)} at the start. The "
        f"learning rate of {rates(e)} sets how soon that overflows, not whether.",
        fixes=(
            Fix(
                title="bound what is minimized: look for a lost sign, a missing square, or a term that "
                "can be made as negative as one likes; a penalty or a clamp on the weights bounds it",
                why="no learning rate helps where the minimum is at minus infinity",
            ),
        ),
    )


def _other_batches(outcome: str | None) -> tuple[str, ...]:
    if outcome == "nonfinite":
        return ("the batch before fails as well on these weights",)
    if outcome == "finite":
        return ("the batch before is fine on these weights",)
    return ()


def can_diverge(e: Evidence) -> bool:
    """Whether this incident can be the end of a divergence."""
    if e.birth is None or e.event.phase in ("data", "checkpoint", "parameter"):
        return False
    return e.location.is_reproduced and not e.is_first_step


def story(e: Evidence) -> str:
    """The course of the loss and the weights in a few numbers; "" if neither has changed much."""
    parts = []
    losses = e.losses
    if len(losses) >= 2 and e.loss_growth > 10:
        shown = " -> ".join(num(v) for v in losses[-4:])
        parts.append(f"the loss went {shown}")
    w = e.weights
    if w.total_growth > 3:
        parts.append(
            f"the largest weight is {num(w.largest)} where it was {num(w.first)} at the start"
        )
    return " and ".join(parts)


def rates(e: Evidence) -> str:
    unique = list(dict.fromkeys(num(v) for v in e.event.lr))
    return ", ".join(unique[:3]) or "the optimizer"


def divergence_fixes(e: Evidence) -> tuple[Fix, ...]:
    """A smaller rate first; clipping if no rate helps."""
    rate = rate_fix(e)
    is_found = e.rate is not None and e.rate.passed is not None
    clip = None if is_found else clip_fix(e)
    return tuple(f for f in (rate, clip) if f is not None)

"""A loss scale corrupts gradients that are ordinary without it."""

from __future__ import annotations

from math import isfinite, log2

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, num

_LEAST = 8.0
_COLLAPSED = 1e-12


@rule("loss_scaling")
def static_scale(e: Evidence) -> Finding | None:
    factor = e.scale.factor
    if factor is None or factor < _LEAST or e.birth is None or e.scale.is_stepped_again:
        return None
    is_scale = e.is_half or (
        e.has_diverged >= 0.5 and factor >= 256 and factor == 2 ** round(log2(factor))
    )
    if not e.is_overflow or not is_scale:
        return None
    outcome = e.results.get("unscaled")
    confidence = {"finite": 0.95, "nonfinite": 0.1}.get(outcome or "", 0.72)
    return Finding(
        confidence=confidence,
        sentence=f"The loss is multiplied by a constant {num(factor)} before the backward, and that "
        f"factor is what does not fit {here(e)}: without it the gradients are ordinary.",
        fixes=(
            Fix(
                title="use torch.amp.GradScaler, which lowers its scale on overflow and skips that "
                f"step, instead of the constant {num(factor)}; with bfloat16 or float32 no scale",
                why="no constant fits every batch of a training",
                before=f"scale {num(factor)}",
                after="scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
                experiment="unscaled",
            ),
        ),
        wants=("unscaled",),
        proof="unscaled",
    )


@rule("loss_scaling")
def scaled_in_the_loss(e: Evidence) -> Finding | None:
    """The product of the loss with a constant overflows."""
    if e.birth is None or e.kernel != "mul" or not e.is_overflow or e.is_backward:
        return None
    sizes = [s for s in e.tensors if s.num_elements == 1]
    factor = e.number("other")
    if len(sizes) != len(e.tensors) or factor is None or factor < _LEAST or not e.is_half:
        return None
    outcome = e.results.get("unscaled")
    return Finding(
        confidence={"finite": 0.96, "nonfinite": 0.2}.get(outcome or "", 0.88),
        sentence=f"The loss {here(e)} is {num(e.number('self'))}, an ordinary number; multiplied by the "
        f"constant scale {num(factor)} it exceeds {num(e.limit)}, the limit of {e.dtype}.",
        fixes=(
            line_fix(
                e,
                f"use torch.amp.GradScaler instead of the constant {num(factor)}, and scale in float32",
                "it lowers its scale on overflow; no constant fits every batch",
                experiment="unscaled",
            ),
        ),
        wants=("unscaled",),
        proof="unscaled",
    )


@rule("loss_scaling")
def scaler_without_step(e: Evidence) -> Finding | None:
    if not e.scale.is_scaler_unused or e.birth is None:
        return None
    outcome = e.results.get("unscaled")
    return Finding(
        confidence={"finite": 0.97, "nonfinite": 0.3}.get(outcome or "", 0.93),
        sentence=f"A GradScaler multiplies the loss by {num(e.scale.scaler)}, but nothing takes the "
        "factor out again: scaler.step(optimizer) and scaler.update() are not called, so every update "
        f"is {num(e.scale.scaler)} times too long.",
        fixes=(
            Fix(
                title="call scaler.step(optimizer) and scaler.update() instead of optimizer.step() "
                "(and scaler.unscale_(optimizer) before clipping)",
                why="with the factor taken out, the same steps stay finite",
                before="optimizer.step()",
                after="scaler.step(optimizer); scaler.update()",
                experiment="unscaled",
            ),
        ),
        wants=("unscaled",),
        proof="unscaled",
    )


@rule("loss_scaling")
def step_beside_the_scaler(e: Evidence) -> Finding | None:
    """Every loss is scaled, but one of the optimizers steps without the scaler."""
    if not e.scale.is_passed_by or e.birth is None:
        return None
    outcome = e.results.get("unscaled")
    return Finding(
        confidence={"finite": 0.97, "nonfinite": 0.3}.get(outcome or "", 0.9),
        sentence=f"A GradScaler multiplies every loss by {num(e.scale.scaler)}, and one optimizer steps by "
        "itself: nobody takes the factor out of its gradients, so its updates are that many times too long.",
        fixes=(
            Fix(
                title="call scaler.step(optimizer) for this optimizer too",
                why="with the factor taken out, the same steps stay finite",
                before="optimizer.step()",
                after="scaler.step(optimizer)",
                experiment="unscaled",
            ),
        ),
        wants=("unscaled",),
        proof="unscaled",
    )


@rule("loss_scaling")
def step_after_the_scaler(e: Evidence) -> Finding | None:
    """The scaler found an overflow and left the step out, but the loop then stepped by itself."""
    if not e.scale.is_stepped_again:
        return None
    outcome = e.results.get("unscaled")
    return Finding(
        confidence={"finite": 0.97, "nonfinite": 0.4}.get(outcome or "", 0.9),
        sentence="The GradScaler found these gradients not finite and left the step out, which is ordinary while "
        "it looks for its scale; but optimizer.step() is called once more without it and applies them.",
        fixes=(
            Fix(
                title="remove the optimizer.step() beside scaler.step(optimizer), or call it only where no "
                "scaler is used",
                why="the scaler takes the step itself, and leaves it out after an overflow; otherwise every "
                "step is taken twice",
                before="optimizer.step()",
                experiment="unscaled",
            ),
        ),
        wants=("unscaled",),
        proof="unscaled",
    )


@rule("loss_scaling")
def scale_collapsed(e: Evidence) -> Finding | None:
    if not e.scale.is_collapse:
        return None
    return Finding(
        confidence=0.95,
        sentence=f"The GradScaler skips step after step and has come down to {num(e.scale.scaler)}; "
        "without its scale the gradients of this step are finite.",
        fixes=(
            Fix(
                title="look for scaler.unscale_ called twice or never, a clip before it, or a second "
                "backward that is not scaled; otherwise start with a lower init_scale",
                why="a scale that only falls never matches the gradients it is meant for",
                experiment="unscaled",
            ),
        ),
        wants=("unscaled",),
        proof="unscaled",
    )


@rule("loss_scaling")
def scale_fell_to_nothing(e: Evidence) -> Finding | None:
    """A custom scale was halved until it became zero, and the gradients are divided by it."""
    factor = e.scale.factor
    if factor is None or not abs(factor) < _COLLAPSED or e.birth is None:
        return None
    if e.event.loss is None or not isfinite(e.event.loss):
        return None  # it was bad before the multiplication
    return Finding(
        confidence=0.97,
        sentence=f"The loss is multiplied by a scale that has come down to {num(factor)}, and what is "
        f"divided by it again is not finite {here(e)}. The loss itself is ordinary.",
        fixes=(
            line_fix(
                e,
                "give the loss scale a floor (1 is enough) and let it grow again, as torch.amp.GradScaler "
                "does",
                "a scale that only falls ends at zero, and 0 / 0 is NaN",
            ),
        ),
    )

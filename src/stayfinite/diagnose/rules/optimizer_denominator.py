"""The optimizer divides by zero although the gradients are finite."""

from __future__ import annotations

import contextlib
import os

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import here, line_fix, part

_DIVIDES = ("div", "addcdiv", "reciprocal", "rsqrt", "true_divide", "divide", "pow")
_FUSED = (
    "_fused_adam",
    "_fused_adamw",
    "_fused_adagrad",
    "_fused_sgd",
    "_fused_adam_",
    "_fused_adamw_",
)


@rule("optimizer_denominator")
def zero_in_the_update(e: Evidence) -> Finding | None:
    if not e.is_in_optimizer or not (e.kernel in _DIVIDES or e.kernel in _FUSED):
        return None
    if not e.has_finite_inputs:
        return None
    divisor = e.at_bad("tensor2", "other", "self")
    if e.kernel not in _FUSED and (divisor is None or not divisor.num_zero):
        return None
    eps = _number(e.optimizer.get("eps"))
    half = divisor is not None and divisor.dtype in ("float16", "bfloat16")
    if eps == 0.0:
        reason = "its epsilon is 0"
    elif half and eps is not None:
        reason = f"its epsilon of {eps:g} rounds to zero in {divisor.dtype if divisor else 'half'}"
    else:
        reason = "nothing keeps the denominator away from zero"
    name = e.optimizer.get("type", "the optimizer")
    fixes = []
    if eps is not None and eps < (1e-4 if half else 1e-8):
        wanted = "1e-4 (or keep the parameters and the optimizer in float32)" if half else "1e-8"
        fixes.append(
            Fix(
                title=f"{name}: set eps={wanted} instead of {eps:g}",
                why="a parameter whose gradient is zero has moments of zero, and 0 / 0 is NaN",
                before=f"eps={eps:g}",
                after=f"eps={'1e-4' if half else '1e-8'}",
                experiment="larger_eps",
            )
        )
    if not e.is_in_library_optimizer:
        fixes.append(
            line_fix(
                e,
                f"add an epsilon to the denominator {here(e)}",
                "a gradient or a norm of exactly zero is ordinary: unused rows, silent inputs, padding",
            )
        )
    return Finding(
        confidence=0.96,
        sentence=f"{name} divides by exactly zero in its own update: {reason}. The gradients are "
        "finite.",
        fixes=tuple(fixes),
    )


@rule("optimizer_denominator")
def zero_in_the_scripts_own_update(e: Evidence) -> Finding | None:
    """The update itself was not seen: what is known is what it was given, what it has left, and its source."""
    update, source = e.own_update, e.source
    stats = source.outputs[0].stats if source is not None and source.outputs else None
    if update is None or update.file is None or stats is None or not stats.num_nan:
        return None
    if stats.num_nan == stats.num_elements or e.has_diverged:
        return None
    place = f"{os.path.basename(update.file)}:{update.line}"
    return Finding(
        confidence=0.8,
        sentence=f"The gradients before it were finite, and the script's own update has made {stats.num_nan} of the "
        f"{stats.num_elements} values of {part(source.label if source else None)} NaN. It divides at {place} by a root or "
        "a norm that nothing keeps from zero: where a gradient has always been zero, that is 0 / 0.",
        fixes=(
            Fix(
                title=f"add an epsilon to the divisor at {place} (1e-8, as torch.optim has it)",
                why="a gradient or a norm of exactly zero is ordinary: unused rows, silent inputs, padding",
                file=update.file,
                line=update.line,
            ),
        ),
    )


def _number(text: str | None) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]
    return None

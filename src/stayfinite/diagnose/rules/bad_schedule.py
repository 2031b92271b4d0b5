"""The learning rate itself is NaN or Inf."""

from __future__ import annotations

import math

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import num


@rule("bad_schedule")
def learning_rate_not_finite(e: Evidence) -> Finding | None:
    bad = [v for v in e.event.lr if not math.isfinite(v)]
    if e.event.symptom == "learning_rate" and e.event.value is not None:
        bad = [e.event.value]
    if not bad:
        return None
    last = next((r for r in reversed(e.history) if r.lr and all(map(math.isfinite, r.lr))), None)
    before = f" Step {last.step} still had {num(last.lr[0])}." if last else ""
    return Finding(
        confidence=0.99,
        sentence=f"The learning rate of this step is {bad[0]}: the schedule made it, and every "
        f"weight that it multiplies becomes {bad[0]} too.{before}",
        fixes=(
            Fix(
                title="guard the schedule's formula: its divisions (total - warmup steps, steps of "
                "decay) and its logarithms or powers at the last step and beyond",
                why="the gradients are finite; with a finite learning rate the same update is fine",
                experiment="finite_lr",
            ),
        ),
        proof="finite_lr",
    )

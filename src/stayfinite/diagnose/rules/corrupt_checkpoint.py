"""The restored state was already corrupt."""

from __future__ import annotations

import os

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count


@rule("corrupt_checkpoint")
def restored_state_is_bad(e: Evidence) -> Finding | None:
    if e.event.phase != "checkpoint" or e.source is None:
        return None
    stats = e.source.outputs[0].stats if e.source.outputs else None
    bad = f" ({count(stats.num_nonfinite, 'value')} of {stats.num_elements})" if stats else ""
    path = e.resume.path
    file = f" from {os.path.basename(path)}" if path else ""
    folder = os.path.dirname(path) if path else "the checkpoint folder"
    is_optimizer = (e.source.label or "").startswith("optimizer_state")
    fixes = [
        Fix(
            title=f"resume from an earlier checkpoint: stayfinite scan {folder or '.'} names the "
            "last good one",
            why="everything that was trained on top of these values is lost already",
            experiment="filled_state",
        )
    ]
    if is_optimizer:
        fixes.insert(
            0,
            Fix(
                title="keep the weights and start with a new optimizer state (do not load it)",
                why="the weights of the checkpoint are finite, only the optimizer's entries are not; "
                "they are rebuilt within some steps",
                experiment="fresh_optimizer",
            ),
        )
    return Finding(
        confidence=0.97,
        sentence=f"The {e.source.label}{bad} was not finite when it was restored{file}, before the "
        "first step of this run.",
        fixes=tuple(fixes),
    )

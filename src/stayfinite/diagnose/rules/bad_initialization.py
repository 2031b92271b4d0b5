"""A parameter or buffer was computed to a NaN or Inf when the model was made."""

from __future__ import annotations

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import count


@rule("bad_initialization")
def bad_from_construction(e: Evidence) -> Finding | None:
    if e.event.phase != "parameter" or e.source is None:
        return None
    stats = e.source.outputs[0].stats if e.source.outputs else None
    if stats is None:
        return None
    kinds = [
        count(n, k)
        for n, k in ((stats.num_nan, "NaN"), (stats.num_posinf, "+Inf"), (stats.num_neginf, "-Inf"))
        if n
    ]
    label = e.source.label or "a parameter"
    return Finding(
        confidence=0.8,
        sentence=f"The {label} had {', '.join(kinds)} among its {stats.num_elements} values before "
        "the first step was made, so no update has done it: the model was built that way, or its first forward has "
        "written it.",
        fixes=(
            Fix(
                title=f"look at how {label.split(' ', 1)[-1]} is computed when the model is made or first run: a "
                "division by a count of zero, a logarithm of zero, a table or a statistic over no data",
                why="stayfinite.numerics has safe_div, safe_log, safe_std and masked_mean for it; "
                "with finite values in its place the same step is finite",
                experiment="filled_state",
            ),
        ),
    )

"""The stored sample was finite; the data pipeline made it non-finite."""

from __future__ import annotations

import os

from ...records import Fix
from ..evidence import Evidence
from ..registry import Finding, rule
from ..words import part


@rule("bad_preprocessing")
def made_by_the_pipeline(e: Evidence) -> Finding | None:
    d = e.data
    if e.event.phase != "data" or d is None or d.origin != "pipeline":
        return None
    label = part(e.source.label if e.source else None)
    place = f" at {os.path.basename(d.file)}:{d.line} ({d.source})" if d.file else ""
    happened = f"{label} became non-finite on the way into the batch"
    if d.is_stored:
        happened = f"{label} was made non-finite when the data set was made"
    short = (d.op or "").split(".")[-1].rstrip("_")
    return Finding(
        confidence=0.9 if d.is_stored else 0.95,
        sentence=f"{happened}{place}. {d.detail}".strip(),
        fixes=(
            Fix(
                title="keep the transform finite"
                + (f" at {os.path.basename(d.file)}:{d.line}" if d.file else "")
                + (f": guard the {short} in {d.function}" if short and d.function else ""),
                why="a constant signal, an empty crop or a zero range reaches this line sooner or "
                "later; give the divisor a floor, the logarithm an offset, the cast a range",
                file=d.file,
                line=d.line,
            ),
            Fix(
                title="drop the samples that the pipeline cannot handle",
                why="the other rows of the batch can still be trained on",
                experiment="without_rows",
            ),
        ),
    )

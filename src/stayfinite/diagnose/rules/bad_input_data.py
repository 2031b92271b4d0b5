"""The stored sample is itself NaN, Inf or absurdly large."""

from __future__ import annotations

from ...records import Fix
from ..evidence import BatchPart, Evidence
from ..registry import Finding, rule
from ..words import count, num, part

_ABSURD = 1e8
"""The multiple of the usual magnitude that counts as absurd; units, outliers and spikes are far below it."""


@rule("bad_input_data")
def nonfinite_sample(e: Evidence) -> Finding | None:
    if e.event.phase != "data" or e.source is None:
        return None
    origin = e.data.origin if e.data is not None else "unknown"
    if origin == "pipeline":
        return None
    stats = e.source.outputs[0].stats if e.source.outputs else None
    number = stats.num_nonfinite if stats else 2
    bad = count(number, "value") if stats else "values"
    bad += " that is not finite" if number == 1 else " that are not finite"
    detail = f" {e.data.detail}" if e.data is not None and e.data.detail else ""
    happened = f"{part(e.source.label)} came out of the data with {bad}"
    name = (e.source.label or "batch").removeprefix("batch ")
    if not name.startswith("batch"):
        happened = f"the script's own {name} holds {bad}, before anything is computed from it"
    return Finding(
        confidence=0.95 if origin == "stored" else 0.75,
        sentence=f"{happened}.{detail}",
        fixes=_fixes(e),
    )


@rule("bad_input_data")
def absurdly_large(e: Evidence) -> Finding | None:
    if e.birth is None or not (e.is_overflow or e.is_backward):
        return None
    part = max(e.batch, key=_excess, default=None)
    if part is None or _excess(part) < _ABSURD or (part.stats.abs_max or 0) < 1e9:
        return None
    usual = min(v for v in (part.usual, part.usual_here) if v is not None)
    return Finding(
        confidence=0.93,
        sentence=f"{part.name} holds values up to {num(part.stats.abs_max)}, where {num(usual)} is "
        "usual: a fill value or a broken record rather than a measurement. They are finite, but what "
        "is computed from them is not.",
        fixes=_fixes(e),
        wants=("without_rows",),
    )


@rule("bad_input_data")
def an_earlier_batch(e: Evidence) -> Finding | None:
    """An earlier batch with absurd values was applied, and corrupted the steps after it."""
    found = e.outlier
    if found is None or e.birth is None or e.event.phase in ("data", "checkpoint", "parameter"):
        return None
    if found.peak < _ABSURD * max(found.usual, 1e-6) or found.peak < 1e9 or not e.has_diverged:
        return None
    where = f"row {found.row} of " if found.row is not None else ""
    which = f" (sample {found.index} of the data set)" if found.index is not None else ""
    return Finding(
        confidence=0.94,
        sentence=f"{where}{found.name} in step {found.step}{which} holds values up to "
        f"{num(found.peak)}, where {num(found.usual)} is usual: a fill value, another unit or a broken "
        "record. That step was finite, so it was made, and the weights have run away with it.",
        fixes=(
            Fix(
                title=f"clean or drop that sample{which} when the data set is read; or go back: "
                'policy="rollback"',
                why="without that batch the steps since the last snapshot are finite",
                experiment="without_outlier",
            ),
        ),
        proof="without_outlier",
    )


def _excess(part: BatchPart) -> float:
    usual = [v for v in (part.usual, part.usual_here) if v is not None]
    if not usual or part.stats.abs_max is None or "float" not in part.stats.dtype:
        return 0.0
    return part.stats.abs_max / max(min(usual), 1e-6)


def _fixes(e: Evidence) -> tuple[Fix, ...]:
    return (
        Fix(
            title="clean, mask or drop these samples when the data set is read",
            why="replace fill values and gaps by a mask or by 0, never by NaN",
            experiment="without_rows",
        ),
    )

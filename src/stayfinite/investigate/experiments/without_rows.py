"""Are some rows of the batch to blame?"""

from __future__ import annotations

from functools import partial

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ...runtime.batches import named_tensors
from ...runtime.rows import cover_rows, num_rows, take_rows
from ..laboratory import Laboratory, Run

__all__ = ["without_rows"]


@experiment("without_rows", "without the offending rows")
def without_rows(lab: Laboratory, e: Evidence) -> Run:
    rows, total = _offending(lab, e)
    if not rows or total is None or len(rows) >= total:
        return None
    lab.rows = rows
    if lab.is_loop:  # a user's loop may depend on the size of its batches
        return (yield from lab.once(batch=partial(cover_rows, rows=rows, total=total)))
    keep = [i for i in range(total) if i not in set(rows)]
    return (yield from lab.once(batch=partial(take_rows, rows=keep, total=total)))


def _offending(lab: Laboratory, e: Evidence) -> tuple[tuple[int, ...], int | None]:
    """Rows with values that are not finite, or absurdly large."""
    if len(lab.window.batches) != 1:
        return (), None
    value = lab.window.batches[0].value
    total = num_rows(value)
    if total is None:
        return (), None
    rows: set[int] = set()
    for part in e.batch:
        if part.stats.shape[:1] == (total,):
            rows |= set(part.bad_rows)
    if rows:
        return tuple(sorted(rows)), total
    for part in e.batch:
        tensor = dict(named_tensors(value)).get(part.name)
        usual = min((v for v in (part.usual, part.usual_here) if v is not None), default=None)
        if tensor is None or usual is None or tensor.shape[:1] != (total,):
            continue
        if tensor.is_floating_point():
            high = tensor.detach().abs().reshape(total, -1).amax(1)
            rows |= {int(i) for i in (high > 1e6 * max(usual, 1e-6)).nonzero().flatten()}
    return tuple(sorted(rows)), total

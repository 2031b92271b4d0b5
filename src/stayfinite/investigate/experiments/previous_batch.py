"""Is this batch to blame, or does the previous one fail as well?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ..laboratory import Laboratory, Run

__all__ = ["previous_batch"]


@experiment("previous_batch", "the batch before, on these weights")
def previous_batch(lab: Laboratory, e: Evidence) -> Run:
    # Without a loader, the data of an earlier step are unknown.
    log = [w for w in lab.investigation.engine.log if w is not lab.window and not w.is_loaderless]
    if not log:
        return None
    return (yield from lab.once(window=log[-1], is_applied=False))

"""Is an unusual batch of an earlier step to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ..laboratory import Laboratory, Run

__all__ = ["without_outlier"]


@experiment(
    "without_outlier", "the steps since the last snapshot without the batch that sticks out"
)
def without_outlier(lab: Laboratory, e: Evidence) -> Run:
    if e.outlier is None:
        return None
    return (yield from lab.replay_from_snapshot(list, without=e.outlier.step))

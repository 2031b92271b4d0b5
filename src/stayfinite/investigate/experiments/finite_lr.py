"""Is a non-finite learning rate to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["finite_lr"]


@experiment("finite_lr", "the last finite learning rate")
def finite_lr(lab: Laboratory, e: Evidence) -> Run:
    rates = [r for record in e.history for r in record.lr if r == r and abs(r) != float("inf")]
    rate = rates[-1] if rates else 1e-4
    return (yield from lab.once([changes.with_setting("lr", rate)], is_applied=True))

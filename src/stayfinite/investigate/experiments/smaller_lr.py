"""Does a tenth of the learning rate survive?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["smaller_lr"]


@experiment("smaller_lr", "a tenth of the learning rate since the last snapshot")
def smaller_lr(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.replay_from_snapshot(lambda: [changes.scaled_lr(0.1)]))

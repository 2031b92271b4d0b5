"""Does clipping survive?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["clipped"]


@experiment("clipped", "gradients clipped to a norm of 1 since the last snapshot")
def clipped(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.replay_from_snapshot(lambda: [changes.clipped(1.0)]))

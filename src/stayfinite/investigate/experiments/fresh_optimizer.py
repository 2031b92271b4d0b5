"""Is the optimizer's state to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["fresh_optimizer"]


@experiment("fresh_optimizer", "a new optimizer state")
def fresh_optimizer(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.once([changes.fresh_optimizer(lab.state)], is_applied=True))

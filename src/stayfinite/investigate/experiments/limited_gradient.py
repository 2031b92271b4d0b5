"""Is an exploding product of Jacobians to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ..laboratory import Laboratory, Run
from ..patched_line import LimitedGradient

__all__ = ["limited_gradient"]


@experiment("limited_gradient", "gradients limited between the layers")
def limited_gradient(lab: Laboratory, e: Evidence) -> Run:
    return (yield from lab.once([LimitedGradient(1e3)], is_applied=False))

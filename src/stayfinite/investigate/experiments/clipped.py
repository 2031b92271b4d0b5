"""Does gradient clipping help, and at which norm?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ...runtime.step_changes import clipped as clip_to
from ..laboratory import Laboratory, Run
from ..search import Search

__all__ = ["clipped"]

_NORMS = (1.0, 0.1, 0.01)


@experiment("clipped", "gradients clipped from the last snapshot on")
def clipped(lab: Laboratory, e: Evidence) -> Run:
    norms = _NORMS[1:] if e.is_clipped else _NORMS
    search = Search(lab, norms, lambda value: [clip_to(value)])
    lab.clip = yield from search.run(None, usual=norms[0])
    return lab.outcome(lab.clip)

"""Is the optimizer's epsilon to blame?"""

from __future__ import annotations

import torch

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["larger_eps"]

_HALF = (torch.float16, torch.bfloat16)


@experiment("larger_eps", "a larger epsilon in the optimizer")
def larger_eps(lab: Laboratory, e: Evidence) -> Run:
    eps = 1e-4 if any(p.dtype in _HALF for _, p in lab.state.parameters()) else 1e-8
    return (yield from lab.once([changes.with_setting("eps", eps)], is_applied=True))

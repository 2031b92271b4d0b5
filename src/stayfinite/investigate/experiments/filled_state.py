"""Are the non-finite values in the state to blame?"""

from __future__ import annotations

import torch
from torch import Tensor

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ...numerics.health import badness
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["filled_state"]


@experiment("filled_state", "the non-finite values replaced")
def filled_state(lab: Laboratory, e: Evidence) -> Run:
    bad: list[Tensor] = []
    source = lab.origin.source if lab.origin is not None else None
    for _, _, t in lab.state.bad_state(ignore_initial=False):
        is_source = source is not None and t is source.tensor
        if (is_source or badness(t).has_nan) and t.layout == torch.strided:
            bad.append(t)
    if not bad:
        return None
    return (yield from lab.once([changes.filled(bad)], is_applied=_is_late(lab)))


def _is_late(lab: Laboratory) -> bool:
    source = lab.origin.source if lab.origin is not None else None
    return source is not None and source.kind == "optimizer_state"

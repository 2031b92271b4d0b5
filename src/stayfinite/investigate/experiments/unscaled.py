"""Is the loss scale to blame?"""

from __future__ import annotations

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from .. import changes
from ..laboratory import Laboratory, Run
from ..patched_line import PatchedLine

__all__ = ["unscaled"]


@experiment("unscaled", "without the loss scale")
def unscaled(lab: Laboratory, e: Evidence) -> Run:
    is_left_in = e.scale.is_scaler_unused or e.scale.is_passed_by
    factor = e.scale.scaler if is_left_in else e.scale.factor
    birth = e.birth
    if (
        birth is not None
        and not e.is_backward
        and e.kernel == "mul"
        and e.operand("other") is not None
    ):
        is_scalar = all(s.num_elements == 1 for s in e.tensors)
        if is_scalar:
            return (yield from lab.once([PatchedLine(birth, drops_factor=True)]))
    if factor is None or factor <= 0:
        return (yield from lab.once(is_unscaled=True))
    if e.is_backward:
        return (yield from lab.once([changes.root_gradient(1 / factor)], is_unscaled=True))
    return (
        yield from lab.replay_from_snapshot(
            lambda: [changes.root_gradient(1 / factor)], is_unscaled=True
        )
    )

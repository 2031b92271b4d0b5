"""A fix for parameters or buffers that are not finite from construction: zeros instead of these values."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...diagnose.evidence import Evidence
from ...remedies import Candidate, apply, filled
from .. import changes
from ..laboratory import Laboratory
from .setting_change import SettingChange, source_of_culprit

__all__ = ["first_values_change"]

_MOST = 0.5
"""If more than this share of the values is bad, zeros would be most of the parameter."""


def first_values_change(lab: Laboratory, e: Evidence) -> SettingChange | None:
    """The line that computes it, wrapped in `nan_to_num`."""
    tensor = _tensor(lab)
    found = source_of_culprit(lab, e, "bad_initialization")
    if tensor is None or found is None:
        return None
    place, source = found
    if float((~torch.isfinite(tensor.detach())).float().mean()) > _MOST:
        return None
    remedy = filled(source, place.line)
    if remedy is None:
        return None
    after, done = apply(source.text, [remedy])
    return SettingChange(
        place.file, source.text, after, Candidate(done, after), partial(changes.filled, [tensor])
    )


def _tensor(lab: Laboratory) -> Tensor | None:
    """The only tensor of the model that the failure came from."""
    source = lab.origin.source if lab.origin is not None else None
    found = source.tensor if source is not None else None
    bad = [t for _, _, t in lab.state.bad_state(ignore_initial=False)]
    for tensor in bad:
        if tensor is found or len(bad) == 1:
            return tensor
    return None

"""Source changes: found in the syntax tree, made as text edits, shown as a diff.

One catalogue for `lint --fix`, for the fixes of a diagnosis and for `stayfinite fix`. Nothing is executed, and the rest of the
file stays as its author has written it, including comments and formatting.

>>> from stayfinite import remedies
>>> text = "import torch\\nloss = -torch.log(torch.softmax(z, dim=1))  # per class\\n"
>>> found = remedies.at(remedies.Source(text), line=2, names=["log_space"])
>>> print(remedies.apply(text, found[:1])[0], end="")
import torch
loss = -torch.log_softmax(z, dim=1)  # per class
"""

from __future__ import annotations

from . import (
    densities,
    divisions,
    domains,
    elementary,
    exponentials,
    floors,
    gradients,
    log_space,
    loops,
    losses,
    masked,
    normalized,
    precision,
    reductions,
    rows,
    targets,
)
from .catalogue import CATALOGUE, Pattern, at, find, pattern
from .choice import Candidate, Symptom, candidates, is_equivalent, is_flat, is_shift, room_of
from .dtypes import in_precision
from .edits import Edit, Remedy, apply, unified_diff
from .loops import clip_behind
from .parameters import as_parameters
from .patching import Patch, apply_patch, read_patch
from .pipelines import pipeline_candidates
from .rows import taken_rows, with_filled_values, without_bad_rows, without_bad_rows_of
from .scaling import ScaledLoss, scaled_loss, step_left_to_scaler
from .schedules import schedule_candidates
from .settings import with_keyword
from .source import Source
from .values import at_most, filled, lines_after, lines_before, with_argument

__all__ = [
    "CATALOGUE",
    "Candidate",
    "Edit",
    "Patch",
    "Pattern",
    "Remedy",
    "ScaledLoss",
    "Source",
    "Symptom",
    "apply",
    "apply_patch",
    "as_parameters",
    "at",
    "at_most",
    "candidates",
    "clip_behind",
    "densities",
    "divisions",
    "domains",
    "elementary",
    "exponentials",
    "filled",
    "find",
    "floors",
    "gradients",
    "in_precision",
    "is_equivalent",
    "is_flat",
    "is_shift",
    "lines_after",
    "lines_before",
    "log_space",
    "loops",
    "losses",
    "masked",
    "normalized",
    "pattern",
    "pipeline_candidates",
    "precision",
    "read_patch",
    "reductions",
    "room_of",
    "rows",
    "scaled_loss",
    "schedule_candidates",
    "step_left_to_scaler",
    "taken_rows",
    "targets",
    "unified_diff",
    "with_argument",
    "with_filled_values",
    "with_keyword",
    "without_bad_rows",
    "without_bad_rows_of",
]

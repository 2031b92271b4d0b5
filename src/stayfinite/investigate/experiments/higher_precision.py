"""Is the step finite in float32?"""

from __future__ import annotations

from typing import Any

import torch

from ...diagnose.evidence import Evidence
from ...diagnose.experiments import experiment
from ...runtime.rows import map_tensors
from .. import changes
from ..laboratory import Laboratory, Run

__all__ = ["higher_precision"]

_HALF = (torch.float16, torch.bfloat16)


@experiment("higher_precision", "float32 instead of half precision")
def higher_precision(lab: Laboratory, e: Evidence) -> Run:
    window = lab.window.with_values(_widen, is_for_all=True)
    contexts = [changes.higher_precision(lab.state)]
    return (yield from lab.once(contexts, window=window, is_applied=False))


def _widen(batch: Any) -> Any:
    return map_tensors(batch, lambda t: t.float() if t.dtype in _HALF else t)

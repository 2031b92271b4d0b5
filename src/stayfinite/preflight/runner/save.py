"""Saves a step that breaks the training for `stayfinite replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...investigate.capsule import MAX_BYTES, contents_of
from ...private import make_folder
from ...runtime.batches import batch_bytes
from ...runtime.saves.gate import ungated
from ...runtime.state import TrainState

__all__ = ["save_step"]


def save_step(path: str, state: TrainState, batch: Any) -> None:
    """Everything as it is before the step; nothing where that is too large or not plain values."""
    size = 3 * sum(t.numel() * t.element_size() for _, t in state.parameters()) + batch_bytes(batch)
    if size > MAX_BYTES:
        return
    contents = contents_of(state, [batch], 0)
    if contents is None:
        return
    make_folder(Path(path).parent)
    with ungated():
        torch.save(contents, path)

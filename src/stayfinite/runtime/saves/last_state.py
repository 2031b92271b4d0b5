"""Writes the last healthy state: a file that `torch.load(weights_only=True)` reads, or a checkpoint of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...patches.manager import unpatched
from ...private import make_folder
from ...recover.atomic import atomic_path
from ...saying import say
from ..ranks.agreement import Ranks
from ..ranks.groups import is_sharded
from ..state import TrainState
from .plain_values import NOT_PLAIN, plain, plain_part

__all__ = ["LAST_HEALTHY", "save_last_healthy"]

LAST_HEALTHY = "last_healthy.pt"


def save_last_healthy(
    state: TrainState, folder: Path | None, step: int, ranks: Ranks
) -> Path | None:
    """Save the current state of the training, after the last healthy state was restored; `step` is the next step.

    A single model, optimizer or scheduler is stored as its `state_dict`; several are a dict by name, or a list.
    A state that is spread over the ranks becomes a checkpoint of `torch.distributed.checkpoint`, written by all of them.
    """
    if any(is_sharded(p) for _, p in state.parameters()):
        return _save_shards(state, folder, step, ranks)
    if folder is None or not ranks.can_save_whole:
        return None
    path = make_folder(folder) / LAST_HEALTHY
    with atomic_path(path) as part:
        # The unpatched function: this file does not go through the save gate.
        unpatched(torch.save)(_contents(state, step), part)
        part.chmod(0o600)
    return path


def _save_shards(state: TrainState, folder: Path | None, step: int, ranks: Ranks) -> Path | None:
    """All ranks are here at the same time, and wait for each other no longer than after any failure."""
    from torch.distributed.checkpoint.state_dict_saver import save

    if not ranks.is_on:
        return None
    home = ranks.broadcast_from(ranks.first, folder and str(folder))
    if home is None:
        return None
    path = Path(home) / LAST_HEALTHY.removesuffix(".pt")
    try:
        if ranks.is_first:
            make_folder(path)
        with _limited_group(ranks.talk.seconds) as group:
            unpatched(save)(_contents(state, step), checkpoint_id=path, process_group=group)
    except Exception as error:  # the run ends with its own message, on every rank
        say(f"stayfinite (rank {ranks.rank}): the last healthy state could not be saved: {error}")
        return None
    return path


@contextlib.contextmanager
def _limited_group(seconds: float) -> Iterator[Any]:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def _contents(state: TrainState, step: int) -> dict[str, Any]:
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
    return {k: v for k, v in contents.items() if v is not NOT_PLAIN}


def _one(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else found or None

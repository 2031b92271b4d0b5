"""All that is needed to run a failed step again in another process, in one file.

The file holds tensors and plain values only, so that `torch.load(..., weights_only=True)` reads it:
opening an incident that somebody sent never runs code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import UsageError
from ..patches.provenance import provenance
from ..records import Incident
from ..runtime.batches import batch_bytes
from ..runtime.rows import map_tensors
from ..runtime.save_gate import ungated
from .investigation import Investigation

__all__ = ["CAPSULE", "MAX_BYTES", "load_capsule", "load_into", "save_capsule"]

CAPSULE = "capsule.pt"
VERSION = 1
MAX_BYTES = 1 << 29
"""Larger trainings are not saved beside their incidents; the report says so."""


def save_capsule(about: Investigation, incident: Incident) -> str:
    """Write the state before the failed step beside the incident; says why where it does not."""
    journal = about.engine.journal
    if journal is None:
        return ""
    state = about.state
    size = 3 * sum(t.numel() * t.element_size() for _, t in state.parameters())
    size += sum(batch_bytes(b.value) for b in about.window.batches)
    if size > MAX_BYTES:
        return f"no capsule: about {size >> 20} MB, the limit is {MAX_BYTES >> 20} MB"
    contents = _contents(about)
    if contents is None:
        return "no capsule: the batch holds objects that cannot be saved as plain values"
    home = Path(journal.journal.path).parent / "incidents" / incident.id
    temporary = home / f".{CAPSULE}.{os.getpid()}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with ungated():
            torch.save(contents, temporary)
        os.replace(temporary, home / CAPSULE)
    except OSError as e:
        return f"no capsule: {e.strerror or e}"
    return ""


def _contents(about: Investigation) -> dict[str, Any] | None:
    state, window = about.state, about.window
    batches = [_plain(map_tensors(b.value, _copy)) for b in window.batches]
    if any(b is _NOT_PLAIN for b in batches):
        return None
    rng = window.rng
    return {
        "version": VERSION,
        "step": window.step,
        "models": {name: _plain(root.state_dict()) for name, root in state.roots.items()},
        "training": {name: root.training for name, root in state.roots.items()},
        "optimizers": [_plain(o.state_dict()) for o in state.optimizers],
        "schedulers": [_plain_part(s.state_dict()) for s in state.schedulers],
        "scalers": [_plain(s.state_dict()) for s in state.scalers if s.is_enabled()],
        "batches": batches,
        "lrs": list(window.lrs),
        "rng": rng.torch if rng is not None else torch.get_rng_state(),
        "first_sizes": {k: list(v) for k, v in state.first_sizes.items()},
        "first_lrs": list(state.first_lrs),
        "indices": _plain_part({"indices": window.batches[0].indices}),
        "script": about.engine.script,
        "args": list(sys.argv[1:]),
    }


_NOT_PLAIN = object()


def _copy(t: Tensor) -> Tensor:
    return t.detach().cpu().clone()


def _plain(value: Any) -> Any:
    """The value made of tensors, numbers, text, lists, tuples and dicts; else a marker."""
    if isinstance(value, Tensor):
        return _copy(value) if value.layout == torch.strided else value.detach()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        items = {k: _plain(v) for k, v in value.items()}
        is_bad = any(v is _NOT_PLAIN for v in items.values())
        is_bad = is_bad or not all(isinstance(k, (str, int)) for k in items)
        return _NOT_PLAIN if is_bad else items
    if isinstance(value, (list, tuple)):
        parts = [_plain(v) for v in value]
        if any(p is _NOT_PLAIN for p in parts):
            return _NOT_PLAIN
        return tuple(parts) if isinstance(value, tuple) else parts
    return _NOT_PLAIN


def _plain_part(value: dict[str, Any]) -> dict[str, Any]:
    """What of it is plain; a scheduler's functions are rebuilt by whoever builds it."""
    return {k: p for k, v in value.items() if (p := _plain(v)) is not _NOT_PLAIN}


def load_capsule(folder: str | Path) -> dict[str, Any]:
    """The capsule beside an incident; tensors and plain values, never code."""
    path = Path(folder) / CAPSULE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {CAPSULE}: the incident was saved without its state (too large, or the "
            "batch could not be saved)\n  try: set a run folder (run_dir=...) and let it fail again"
        )
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:
        raise UsageError(f"{path} cannot be read: {str(e).splitlines()[0]}") from e
    if not isinstance(contents, dict) or contents.get("version") != VERSION:
        raise UsageError(f"{path} is no capsule of this version of stayfinite")
    return contents


def load_into(
    capsule: dict[str, Any], model: nn.Module, optimizer: Optimizer, scheduler: Any, scaler: Any
) -> None:
    """Put the saved state into freshly built parts; what does not fit is named."""
    saved: dict[str, Any] = next(iter(capsule["models"].values()), {})
    try:
        model.load_state_dict(saved)
        if capsule["optimizers"]:
            optimizer.load_state_dict(capsule["optimizers"][0])
        if scheduler is not None and capsule["schedulers"]:
            scheduler.__dict__.update(capsule["schedulers"][0])
        if scaler is not None and capsule["scalers"]:
            scaler.load_state_dict(capsule["scalers"][0])
    except (RuntimeError, ValueError, KeyError) as e:
        raise UsageError(
            f"the saved state does not fit what was built: {str(e).splitlines()[0]}\n"
            "  try: let the build function make the same model and optimizer as the training"
        ) from e
    model.train(next(iter(capsule["training"].values()), True))
    for group, rate in zip(optimizer.param_groups, capsule["lrs"]):
        group["lr"] = rate
    for part in (model, optimizer):  # this was a replay, not a resume
        provenance.restored.pop(part, None)

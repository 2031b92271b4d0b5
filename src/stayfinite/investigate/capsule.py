"""Saves one failed step in a file, so that another process can run it again.

The file contains only tensors and plain values, so that `torch.load(..., weights_only=True)` reads it. It records the command
without its secrets, but that is never executed: `stayfinite replay` takes the script from its own command line.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checkpoint import scan_file
from ..errors import UsageError
from ..patches.provenance import provenance
from ..records import Incident
from ..report.reading import printable
from ..report.redact import redact_arguments
from ..report.store import CAPSULE, MAX_BYTES, CapsuleStore
from ..runtime.batches import batch_bytes
from ..runtime.rows import map_tensors
from ..runtime.saves.gate import ungated
from ..runtime.saves.plain_values import NOT_PLAIN, copied, plain, plain_part
from ..runtime.state import TrainState
from .investigation import Investigation

__all__ = [
    "CAPSULE",
    "MAX_BYTES",
    "contents_of",
    "load_capsule",
    "load_into",
    "recorded_command",
    "save_capsule",
]

VERSION = 1


def save_capsule(investigation: Investigation, incident: Incident) -> str:
    """Save the state before the failed step with the incident; returns the reason if that is not possible."""
    journal = investigation.engine.journal
    if journal is None:
        return ""
    store = _store(Path(journal.file.path).parent)
    size = 3 * sum(t.numel() * t.element_size() for _, t in investigation.state.parameters())
    size += sum(batch_bytes(b.value) for b in investigation.window.batches)
    if reason := store.refuses(incident, size):
        return reason
    contents = _contents(investigation)
    if contents is None:
        return "no capsule: the batch holds objects that cannot be saved as plain values"

    def save(path: Path) -> None:
        with ungated():
            torch.save(contents, path)

    return store.write(incident, save)


_stores: dict[Path, CapsuleStore] = {}


def _store(run: Path) -> CapsuleStore:
    """The store of a run folder, which knows the kinds of incidents with a capsule."""
    return _stores.setdefault(run.absolute(), CapsuleStore(run))


def _contents(investigation: Investigation) -> dict[str, Any] | None:
    window, rng = investigation.window, investigation.window.rng
    contents = contents_of(investigation.state, [b.value for b in window.batches], window.step)
    if contents is None:
        return None
    return {
        **contents,
        "lrs": list(window.lrs),
        "rng": rng.torch if rng is not None else torch.get_rng_state(),
        "indices": plain_part({"indices": window.batches[0].indices}),
        "script": investigation.engine.script,
        "args": _arguments(investigation.engine.settings.store_args),
    }


def contents_of(state: TrainState, values: Sequence[Any], step: int) -> dict[str, Any] | None:
    """The current state of a training and the batches of its next step; None if these are not plain values."""
    batches = [plain(map_tensors(b, copied)) for b in values]
    if any(b is NOT_PLAIN for b in batches):
        return None
    return {
        "version": VERSION,
        "step": step,
        "models": {name: plain(root.state_dict()) for name, root in state.roots.items()},
        "training": {name: root.training for name, root in state.roots.items()},
        "optimizers": [plain(o.state_dict()) for o in state.optimizers if hasattr(o, "state_dict")],
        "schedulers": [plain_part(s.state_dict()) for s in state.schedulers],
        "scalers": [plain(s.state_dict()) for s in state.scalers if s.is_enabled()],
        "batches": batches,
        "lrs": list(state.lrs()),
        "rng": torch.get_rng_state(),
        "first_sizes": {k: list(v) for k, v in state.first_sizes.items()},
        "first_lrs": list(state.first_lrs),
        "indices": {},
        "script": None,
        "args": [],
    }


def _arguments(is_kept: bool) -> list[str]:
    """The command for people to read."""
    return list(sys.argv[1:]) if is_kept else redact_arguments(sys.argv[1:])


def load_capsule(folder: str | Path) -> dict[str, Any]:
    """Load the capsule of an incident: tensors and plain values, never code."""
    path = Path(folder) / CAPSULE
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {CAPSULE}: the incident was saved without its state (too large, or the "
            "batch could not be saved)\n  try: set a run folder (run_dir=...) and let it fail again"
        )
    found = scan_file(path)
    if found.verdict in ("hostile", "unreadable"):
        worst = next(f for f in found.findings if f.severity == found.verdict)
        raise UsageError(f"{path} is {found.verdict} and was not opened: {worst.message}")
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:
        raise UsageError(f"{path} cannot be read: {str(e).splitlines()[0]}") from e
    if not isinstance(contents, dict) or contents.get("version") != VERSION:
        raise UsageError(f"{path} is no capsule of this version of stayfinite")
    wrong = [k for k, kind in _SHAPE.items() if not isinstance(contents.get(k), kind)]
    if wrong:
        raise UsageError(f"{path} is no capsule: {', '.join(wrong)} missing or of another kind")
    return contents


_SHAPE: dict[str, Any] = {
    "step": int, "models": dict, "training": dict, "optimizers": list, "schedulers": list,
    "scalers": list, "batches": list, "lrs": list, "rng": Tensor, "first_sizes": dict,
    "first_lrs": list, "args": list,
}  # fmt: skip


def recorded_command(capsule: dict[str, Any]) -> str:
    """The recorded command, for people to read; it is never executed.

    >>> recorded_command({"script": "train.py", "args": ["--name", "a b"]})
    "train.py --name 'a b'"
    """
    words = [capsule.get("script") or "", *capsule.get("args", [])]
    return printable(shlex.join(str(w)[:200] for w in words[:100] if w))


def load_into(
    capsule: dict[str, Any], model: nn.Module, optimizer: Optimizer, scheduler: Any, scaler: Any
) -> None:
    """Load the saved state into new objects; raises a UsageError if it does not fit."""
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
    for part in (model, optimizer):  # this was a replay and not a resume
        provenance.restored.pop(part, None)

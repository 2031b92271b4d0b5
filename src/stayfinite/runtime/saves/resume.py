"""Checks a state before it is restored: whether it is finite, and has the configured learning rate."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import CheckpointError, UsageError
from .gate import bad_tensors

if TYPE_CHECKING:
    from ...checkpoint import CheckpointReport, TensorFinding

__all__ = ["blame", "last_good", "load_last_good", "rate_mismatch", "refuse"]

_PART = ".stayfinite-part-"
_CAPSULE = "capsule.pt"


def last_good(
    where: str | os.PathLike[str], deep: bool = True, like: str | None = None
) -> str | None:
    """Find the newest good checkpoint in a folder; None if there is none.

    Subfolders are searched unless `deep` is False. With `like`, a file in it, only checkpoints of the same model count.
    Capsules of incidents do not count. Every file is read, and nothing in one is executed. The newest is the one with the highest
    step, or with the latest date if the step is unknown. If each rank has written its own file (`rank0.pt`, `rank1.pt`), a save
    counts if all of them are good, and each rank gets its own.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for step, value in ((1, 0.5), (2, float("nan"))):
    ...     torch.save({"step": step, "model": {"w": torch.full((2,), value)}}, f"{folder}/{step}.pt")
    >>> Path(last_good(folder)).name
    '1.pt'
    """
    if not Path(where).is_dir():
        raise UsageError(f"`where` must be a folder of checkpoints, got {os.fspath(where)!r}")
    from ...checkpoint import scan
    from ...checkpoint.timeline import is_same_model
    from .rank_files import whole_sets

    report = scan(where, timeline=False)
    usable = whole_sets(
        where, report.checkpoints, lambda c: c.is_usable and _holds_state(c), _order
    )
    if not deep:
        home = Path(where).resolve()
        usable = [c for c in usable if Path(c.path).resolve().parent == home]
    wanted = Path(like).resolve() if like is not None else None
    model = next((c for c in report.checkpoints if Path(c.path).resolve() == wanted), None)
    if model is not None and any(f.tensors for f in model.files):
        usable = [c for c in usable if is_same_model(c, model)]
    return max(usable, key=_order).path if usable else None


def _holds_state(checkpoint: CheckpointReport) -> bool:
    if checkpoint.link_to is not None or _PART in checkpoint.path:
        return False
    where = Path(checkpoint.path)
    if where.name == _CAPSULE and (where.parent / "incident.json").exists():
        return False
    kinds = {t.role for f in checkpoint.files for t in f.tensors}
    return bool(kinds & {"weights", "ema", "batchnorm"})


def _order(checkpoint: CheckpointReport) -> tuple[int, int, float]:
    step = checkpoint.step if checkpoint.step is not None else -1
    epoch = checkpoint.epoch if checkpoint.epoch is not None else -1
    return step, epoch, checkpoint.modified


def load_last_good(
    where: str | os.PathLike[str], map_location: Any = "cpu"
) -> tuple[str, Any] | None:
    """The path and the contents of the last good checkpoint, for a script that resumes itself.

        found = load_last_good("checkpoints")
        if found is not None:
            path, state = found
            model.load_state_dict(state["model"])

    Returns None if no checkpoint is usable. Only tensors and plain values are read (`weights_only`).
    """
    path = last_good(where)
    if path is None:
        return None
    if Path(path).is_dir():
        raise CheckpointError(
            f"the last good checkpoint is the folder {path}\n"
            "try: give that path to the library that wrote it"
        )
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        return path, load_file(path, device=str(map_location))
    return path, torch.load(path, map_location=map_location, weights_only=True)


def refuse(target: Any, state: Any) -> list[TensorFinding]:
    """The findings that prevent this restore, from any source.

    An infinity that the target already has, in a tensor that is not trained, is intended.
    """
    if not isinstance(state, dict) or not isinstance(target, (nn.Module, Optimizer)):
        return []
    if not isinstance(target, nn.Module):
        return bad_tensors(state)
    # Whatever their names ("loss_ema"), all of these tensors belong to the model.
    found = [
        replace(f, tensor=(f.tensor or "").removeprefix("model."))
        for f in bad_tensors({"model": state})
    ]
    if found:
        fixed = [(n, p) for n, p in target.named_parameters() if not p.requires_grad]
        by_design = {
            n
            for n, t in (*fixed, *target.named_buffers())
            if t.device.type != "meta" and not torch.isfinite(t.detach().to_dense()).all()
        }
        found = [f for f in found if f.tensor not in by_design]
    return found


def blame(found: Sequence[TensorFinding], path: str | None) -> str:
    """The origin of a non-finite state: the "file" that was read last, a cast "since", or "memory" for another state.

    The restored tensors may be copies (`v.float()`), so the file itself is checked.
    """
    try:
        from ...checkpoint import scan

        report = scan(path, timeline=False) if path and os.path.exists(path) else None
    except (CheckpointError, UsageError, OSError):
        return "memory"
    files = [f for c in report.checkpoints for f in c.files] if report is not None else []
    held = [(t.name, t.stats.shape) for f in files for t in f.tensors]
    bad = {t.tensor for f in files for t in f.findings if t.code == "nonfinite_tensor"}
    if _holds_all([h for h in held if h[0] in bad], found):
        return "file"
    return "since" if _holds_all(held, found) else "memory"


def _holds_all(held: Sequence[tuple[str, tuple[int, ...]]], found: Sequence[TensorFinding]) -> bool:
    """Whether the file has these tensors, with any prefix ("module.", "model.")."""
    return all(
        any(
            (f".{name}".endswith(f".{f.tensor}") or f".{f.tensor}".endswith(f".{name}"))
            and (f.stats is None or f.stats.shape == shape)
            for name, shape in held
        )
        for f in found
    )


def rate_mismatch(target: Any, state: Any, path: str | None) -> tuple[float, float, str] | None:
    """(configured rate, restored rate, message) if a resume would train with another learning rate."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if isinstance(target, Optimizer):
        pairs = list(zip(target.param_groups, state.get("param_groups", ())))
    elif hasattr(target, "base_lrs"):
        rates = zip(target.base_lrs, state.get("base_lrs", ()))
        pairs = [({"initial_lr": a}, {"initial_lr": b}) for a, b in rates]
    for now, saved in pairs:
        key = next((k for k in ("max_lr", "initial_lr", "lr") if k in now and k in saved), None)
        wanted = _number(now.get(key)) if key else None
        kept = _number(saved.get(key)) if key else None
        if wanted is None or kept is None or math.isclose(wanted, kept, rel_tol=1e-6):
            continue
        from ...checkpoint import LearningRates, compare

        kept_rates = LearningRates(
            optimizer=_some(saved.get("lr")), initial=_some(saved.get("initial_lr")),
            peak=_some(saved.get("max_lr")), base=_some(saved.get("initial_lr")),
        )  # fmt: skip
        found = compare(kept_rates, wanted, "the script")
        if found is not None:
            name = f" ({path})" if path else ""
            return wanted, kept, f"{found.message}{name}; {found.action}"
    return None


def _some(value: Any) -> tuple[float, ...]:
    number = _number(value)
    return () if number is None else (number,)


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float, torch.Tensor)) and not isinstance(value, bool):
        return float(value)
    return None

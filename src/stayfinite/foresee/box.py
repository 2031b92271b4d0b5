"""The box: all inputs and weights that a verdict holds for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from .tape import Capture

__all__ = ["Box", "batch_sizes_of", "box_around", "reach_of", "read_box"]

NUM_STEPS = 100
"""Weights are those that so many steps at the present rate can reach."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """Ranges of the batch's parts, how far the weights may move, the sizes of a batch."""

    data: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By the part's name: "batch[0]". A part that is not named has the values of the capture."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By the parameter's name: how far each of its elements may be from what it is now."""
    num_steps: int = NUM_STEPS
    batch_sizes: tuple[int, ...] = ()
    """Rows of a batch; () where only the captured one is meant."""


def box_around(
    capture: Capture,
    reach: Mapping[str, float] | None = None,
    batch_sizes: Iterable[int] = (),
    num_steps: int = NUM_STEPS,
) -> Box:
    """The box of what was seen: each part between its smallest and largest value."""
    data: dict[str, tuple[float, float]] = {}
    for part in capture.parts:
        source = capture.sources.get(part.ref.storage)
        if part.kind != "batch" or source is None or source.values is None:
            continue
        values = source.values.as_strided(part.ref.shape, part.ref.stride, part.ref.offset)
        if values.is_complex() or not values.numel():
            continue
        finite = values.double()[values.double().isfinite()]
        if not finite.numel():
            continue
        lo, hi = float(finite.min()), float(finite.max())
        if lo > 0 and bool((finite == finite.round()).all()):
            lo = 0.0  # counts, lengths, labels: there may be none
        known = data.get(part.name, (lo, hi))
        data[part.name] = (min(lo, known[0]), max(hi, known[1]))
    return Box(
        data=data, weights=dict(reach or {}), num_steps=num_steps, batch_sizes=tuple(batch_sizes)
    )


def batch_sizes_of(loaders: Iterable[Any], seen: Iterable[int]) -> tuple[int, ...]:
    """The sizes of batches that will come: those seen, and the last one of an epoch."""
    sizes = {n for n in seen if n}
    for loader in loaders:
        size = getattr(loader, "batch_size", None)
        data = getattr(loader, "dataset", None)
        if isinstance(size, int) and not getattr(loader, "drop_last", False) and hasattr(data, "__len__"):
            sizes |= {len(data) % size} - {0}
    return tuple(sorted(sizes))


def reach_of(
    optimizers: Iterable[Any],
    names: Mapping[int, str],
    num_steps: int = NUM_STEPS,
    clip_norm: float | None = None,
) -> dict[str, float]:
    """How far `num_steps` steps at the present rate can move each parameter (`names` by identity).

    Adam and its kin move an element by at most about the rate. SGD moves it by the rate times the
    gradient: the clipped norm where the loop clips, else the largest gradient at hand.
    """
    found: dict[str, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = abs(float(group.get("lr") or 0.0))
            for p in group["params"]:
                name = names.get(id(p))
                if name is not None:
                    found[name] = num_steps * rate * _per_step(optimizer, group, p, clip_norm)
    return found


def _per_step(optimizer: Any, group: Any, p: Any, clip_norm: float | None) -> float:
    if "betas" in group or "adam" in type(optimizer).__name__.lower():
        return 1.0
    size = clip_norm
    if size is None:
        grad = getattr(p, "grad", None)
        size = float(grad.detach().abs().max()) if grad is not None and _is_plain(grad) else 1.0
    momentum = min(float(group.get("momentum") or 0.0), 0.999)
    size = size / (1.0 - momentum)
    return size if math.isfinite(size) else 1.0


def _is_plain(grad: Any) -> bool:
    return isinstance(grad, torch.Tensor) and grad.layout == torch.strided and grad.numel() > 0


def read_box(path: Path, box: Box) -> Box:
    """A box with what a JSON file says: `{"data": {"batch[0]": [0, 1]}, "weights": 0.1, ...}`.

    Keys: data (ranges by part), weights (one number, or by parameter), num_steps, batch_sizes.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(f"--box {path}: {e}") from e
    known = ("data", "weights", "num_steps", "batch_sizes")
    wrong = [k for k in given if k not in known] if isinstance(given, dict) else ["?"]
    if wrong:
        raise UsageError(f"--box {path}: unknown {', '.join(wrong)}; valid are: {', '.join(known)}")
    data = dict(box.data)
    for name, pair in (given.get("data") or {}).items():
        if name not in data:
            parts = ", ".join(data) or "none"
            raise UsageError(f"--box {path}: the batch has no part {name!r}; its parts: {parts}")
        data[name] = _pair(path, name, pair)
    weights = given.get("weights", box.weights)
    if isinstance(weights, (int, float)):
        weights = dict.fromkeys(box.weights, float(weights))
    sizes = given.get("batch_sizes", box.batch_sizes)
    return replace(
        box,
        data=data,
        weights={**box.weights, **{str(k): float(v) for k, v in weights.items()}},
        num_steps=int(given.get("num_steps", box.num_steps)),
        batch_sizes=tuple(int(n) for n in sizes),
    )


def _pair(path: Path, name: str, pair: Any) -> tuple[float, float]:
    if not isinstance(pair, list) or len(pair) != 2 or not pair[0] <= pair[1]:
        raise UsageError(f"--box {path}: {name} must be [smallest, largest], got {pair!r}")
    return float(pair[0]), float(pair[1])

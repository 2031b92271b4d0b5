"""The box: the ranges of inputs and weights that a verdict holds for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ...errors import UsageError
from ..tape import Capture

__all__ = ["Box", "batch_sizes_of", "box_around", "reach_of", "read_box", "widened_by"]

NUM_STEPS = 100
"""The number of steps at the current rate for which the weights may change."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """The ranges of the batch's parts, the possible changes of the weights, the batch sizes."""

    data: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By the part's name: "batch[0]". A part without an entry keeps its captured values."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By the parameter's name: the maximum change of each of its elements."""
    num_steps: int = NUM_STEPS
    batch_sizes: tuple[int, ...] = ()
    """The numbers of rows; () for only the captured one."""


def box_around(
    capture: Capture,
    reach: Mapping[str, float] | None = None,
    batch_sizes: Iterable[int] = (),
) -> Box:
    """The box of observed values: each part between its smallest and largest value."""
    data: dict[str, tuple[float, float]] = {}
    for part in capture.parts:
        source = capture.sources.get(part.ref.storage)
        if part.kind != "batch" or source is None or source.values is None:
            continue
        found = _range(source.values.as_strided(part.ref.shape, part.ref.stride, part.ref.offset))
        if found is None:
            continue
        lo, hi = found
        known = data.get(part.name, (lo, hi))
        data[part.name] = (min(lo, known[0]), max(hi, known[1]))
    return Box(data=data, weights=dict(reach or {}), batch_sizes=tuple(batch_sizes))


def widened_by(box: Box, named: Iterable[tuple[str, torch.Tensor]]) -> Box:
    """The box extended by another batch."""
    data = dict(box.data)
    for name, values in named:
        found = _range(values) if isinstance(values, torch.Tensor) else None
        if found is not None and name in data:
            data[name] = (min(found[0], data[name][0]), max(found[1], data[name][1]))
    return replace(box, data=data)


def _range(values: torch.Tensor) -> tuple[float, float] | None:
    """From the smallest to the largest; positive integers (counts, lengths) from 0 on."""
    if values.layout != torch.strided or values.is_complex() or not values.numel():
        return None
    wide = values.detach().cpu().double()
    finite = wide[wide.isfinite()]
    if not finite.numel():
        return None
    lo, hi = float(finite.min()), float(finite.max())
    if lo > 0 and bool((finite == finite.round()).all()):
        lo = 0.0
    return lo, hi


def batch_sizes_of(loaders: Iterable[Any], seen: Iterable[int]) -> tuple[int, ...]:
    """The expected batch sizes: the observed ones, and that of an epoch's last batch."""
    sizes = {n for n in seen if n}
    for loader in loaders:
        size = getattr(loader, "batch_size", None)
        data: Any = getattr(loader, "dataset", None)
        if (
            isinstance(size, int)
            and not getattr(loader, "drop_last", False)
            and hasattr(data, "__len__")
        ):
            sizes |= {len(data) % size} - {0}
    return tuple(sorted(sizes))


def reach_of(
    optimizers: Iterable[Any],
    names: Mapping[int, str],
    num_steps: int = NUM_STEPS,
    clip_norm: float | None = None,
    gradients: Mapping[int, float] | None = None,
) -> dict[str, float]:
    """The maximum change of each parameter in `num_steps` steps at the current rate (`names` by id).

    Adam and similar optimizers change an element by at most about the rate per step. SGD changes it by the rate times the gradient:
    the clipped norm if the loop clips, else the magnitude of the observed gradient (`gradients`, by the parameter's id).
    """
    found: dict[str, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = abs(float(group.get("lr") or 0.0))
            for p in group["params"]:
                name = names.get(id(p))
                if name is not None:
                    size = clip_norm if clip_norm is not None else (gradients or {}).get(id(p))
                    found[name] = num_steps * rate * _per_step(optimizer, group, p, size)
    return found


def _per_step(optimizer: Any, group: Any, p: Any, size: float | None) -> float:
    if "betas" in group or "adam" in type(optimizer).__name__.lower():
        return 1.0
    if size is None:
        grad = getattr(p, "grad", None)
        size = float(grad.detach().abs().max()) if grad is not None and _is_plain(grad) else 1.0
    momentum = min(float(group.get("momentum") or 0.0), 0.999)
    size = size / (1.0 - momentum)
    return size if math.isfinite(size) else 1.0


def _is_plain(grad: Any) -> bool:
    return isinstance(grad, torch.Tensor) and grad.layout == torch.strided and grad.numel() > 0


def read_box(path: Path, box: Box) -> Box:
    """Read a box from a JSON file: `{"data": {"batch[0]": [0, 1]}, "weights": 0.1, ...}`.

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

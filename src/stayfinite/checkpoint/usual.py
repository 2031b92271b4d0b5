"""Describes a change by layer and direction, compared with the usual change in this run."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from .compare import OverlapError, change_between, open_tensors
from .discover import discover, step_in_name
from .limits import FileFault, Limits
from .records import CheckpointReport, LayerDiff, TensorDiff
from .remote import is_remote
from .scanner import scan
from .timeline import is_same_model

__all__ = ["ROLE_ORDER", "layer_diffs", "usual_changes"]

ROLE_ORDER = ("weights", "batchnorm", "buffer", "ema", "metric", "data", "scaler", "scheduler")
"""The order of the parts: optimizer moments and random states come last."""
_MAX_PAIRS = 2
_MAX_BYTES = 4 << 30


def layer_diffs(rows: Sequence[TensorDiff]) -> list[LayerDiff]:
    """The weights and statistics of each layer as one vector, in the order of the model."""
    groups: dict[tuple[str, str], list[TensorDiff]] = {}
    for row in rows:
        if row.role in ("weights", "batchnorm", "ema"):
            layer = row.name.rpartition(".")[0] or row.name
            groups.setdefault((row.role, layer), []).append(row)
    found = [_layer(role, layer, members) for (role, layer), members in groups.items()]
    return sorted(found, key=lambda d: ROLE_ORDER.index(d.role))


def _layer(role: str, layer: str, members: list[TensorDiff]) -> LayerDiff:
    sound = [r for r in members if r.norm_a is not None and r.norm_b is not None]
    is_whole = bool(sound) and not any(r.num_nonfinite_a or r.num_nonfinite_b for r in members)
    a, b, moved = (
        math.sqrt(sum((getattr(r, name) or 0.0) ** 2 for r in sound))
        for name in ("norm_a", "norm_b", "norm_change")
    )
    base = a or b
    pairs = [(r.usual * r.norm_a) ** 2 for r in sound if r.usual is not None and r.norm_a]
    return LayerDiff(
        layer=layer,
        role=role,
        relative_change=(moved / base if base else 0.0) if is_whole else None,
        growth=b / a - 1 if is_whole and a else None,
        angle=_angle(a, b, moved) if is_whole else None,
        usual=math.sqrt(sum(pairs)) / a if pairs and a else None,
        num_tensors=len(members),
        num_changed=sum(r.status != "same" for r in members),
        num_nonfinite_a=sum(r.num_nonfinite_a for r in members),
        num_nonfinite_b=sum(r.num_nonfinite_b for r in members),
    )


def _angle(a: float, b: float, moved: float) -> float | None:
    """The angle between two vectors in degrees, from the sides of their triangle.

    >>> round(_angle(1.0, 1.0, 2**0.5)), _angle(0.0, 1.0, 1.0)
    (90, None)
    """
    if not a or not b:
        return None
    cosine = (a * a + b * b - moved * moved) / (2 * a * b)
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def usual_changes(
    a: CheckpointReport, b: CheckpointReport, limits: Limits
) -> tuple[dict[str, float], str]:
    """For each tensor, the relative change between neighboring checkpoints near these two.

    Also the source of the figures; nothing if the run has no other checkpoints, or very large ones.
    """
    pairs = _neighbors(a, b)
    found: dict[str, list[float]] = {}
    renamed = []
    for first, second in pairs:
        changes = _changes(first, second, a, limits)
        if changes:
            renamed.append(f"{first.name} → {second.name}")
        for name, value in changes.items():
            found.setdefault(name, []).append(value)
    return {n: statistics.median(v) for n, v in found.items()}, ", ".join(renamed)


def _neighbors(a: CheckpointReport, b: CheckpointReport) -> list[tuple[Path, Path]]:
    """Pairs of checkpoints that follow one another, the nearest to A and B first."""
    if is_remote(a.path) or is_remote(b.path) or a.kind != "file" or b.kind != "file":
        return []
    ours = {Path(a.path).absolute(), Path(b.path).absolute()}
    home = Path(b.path).absolute().parent
    if len(ours) < 2 or home != Path(a.path).absolute().parent:
        return []
    files = [
        u.path for u in discover([home]).units if u.kind == "file" and isinstance(u.path, Path)
    ]
    dated = sorted((s, f.absolute()) for f in files if (s := step_in_name(f)[0]) is not None)
    order = [f for _, f in dated]
    if not ours <= set(order):
        return []
    first, last = sorted(order.index(p) for p in ours)
    pairs = [p for p in itertools.pairwise(order) if set(p) != ours]
    pairs.sort(key=lambda p: min(abs(order.index(p[0]) - last), abs(order.index(p[1]) - first)))
    small = [p for p in pairs if sum(f.stat().st_size for f in p) <= _MAX_BYTES]
    return small[:_MAX_PAIRS]


def _changes(first: Path, second: Path, like: CheckpointReport, limits: Limits) -> dict[str, float]:
    try:
        reports = [scan(p, timeline=False, limits=limits).checkpoints[0] for p in (first, second)]
    except (FileFault, OSError, IndexError):
        return {}
    if not all(r.is_usable and is_same_model(r, like) for r in reports):
        return {}
    try:
        return _weight_changes(reports[0], reports[1], limits)
    except OverlapError:
        return {}


def _weight_changes(
    first: CheckpointReport, second: CheckpointReport, limits: Limits
) -> dict[str, float]:
    found: dict[str, float] = {}
    with open_tensors(first, limits) as x, open_tensors(second, limits) as y:
        for name, tensor in x.items():
            other = y.get(name)
            if other is None or other.ref.size != tensor.ref.size or tensor.role != "weights":
                continue
            relative = change_between(tensor, other).relative
            if relative is not None:
                found[name] = relative
    return found

"""Layer health over time: the distance of each layer's largest weight to its dtype's limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .curves import as_number

__all__ = ["HeatMap", "headroom_bits", "heat_map", "latest_layers"]

_LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
}
_MAX_ROWS = 60
_MAX_COLUMNS = 120


@dataclass
class HeatMap:
    """Rows are layers, columns are steps; None for missing measurements."""

    names: list[str]
    dtypes: list[str]
    steps: list[int]
    headroom: list[list[float | None]]
    grad: list[list[float | None]]
    update: list[list[float | None]]
    num_left_out: int = 0


def headroom_bits(largest: float | None, dtype: str) -> float | None:
    """How often the largest magnitude can double.

    >>> headroom_bits(2.0, "float16") > 14.9, headroom_bits(0.0, "float16")
    (True, None)
    """
    if largest is None or not largest > 0 or dtype not in _LARGEST:
        return None
    if not math.isfinite(largest):
        return 0.0
    return round(math.log2(_LARGEST[dtype]) - math.log2(largest), 2)


def heat_map(events: Sequence[dict[str, Any]]) -> HeatMap | None:
    """Make the map from the journal's `layers` lines, with the most endangered layers if there are many."""
    names, dtypes, chosen = _named(events)
    if not names or not chosen:
        return None
    if len(chosen) > _MAX_COLUMNS:
        places = [i * (len(chosen) - 1) // (_MAX_COLUMNS - 1) for i in range(_MAX_COLUMNS)]
        chosen = [chosen[i] for i in places]
    weight, grad, update = (_rows(chosen, k, len(names)) for k in ("weight", "grad", "update"))
    headroom = [[headroom_bits(v, d) for v in row] for row, d in zip(weight, dtypes)]
    keep = range(len(names))
    if len(names) > _MAX_ROWS:
        least = [min((h for h in row if h is not None), default=math.inf) for row in headroom]
        keep = sorted(sorted(keep, key=lambda i: least[i])[:_MAX_ROWS])  # type: ignore[assignment]
    return HeatMap(
        names=[names[i] for i in keep],
        dtypes=[dtypes[i] for i in keep],
        steps=[int(e["step"]) for e in chosen],
        headroom=[headroom[i] for i in keep],
        grad=[grad[i] for i in keep],
        update=[update[i] for i in keep],
        num_left_out=len(names) - len(keep),
    )


def latest_layers(events: Sequence[dict[str, Any]]) -> list[tuple[str, float, float | None]]:
    """(layer, headroom in bits, gradient norm) of the last measurement, least headroom first."""
    names, dtypes, chosen = _named(events[-1:] if "names" in (events or [{}])[-1] else events)
    if not chosen:
        return []
    last = chosen[-1]
    found = []
    for name, dtype, weight, grad in zip(names, dtypes, last.get("weight", ()), last["grad"]):
        bits = headroom_bits(as_number(weight), dtype)
        if bits is not None:
            found.append((name, bits, as_number(grad)))
    return sorted(found, key=lambda f: f[1])


def _named(
    events: Sequence[dict[str, Any]],
) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """The newest names, and the lines with these names: the model may have changed."""
    names: list[str] = []
    dtypes: list[str] = []
    chosen: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event.get("names"), list):
            names = [str(n) for n in event["names"]]
            dtypes = [str(d) for d in event.get("dtypes", ())] or ["float32"] * len(names)
            chosen = []
        if isinstance(event.get("weight"), list) and len(event["weight"]) == len(names):
            chosen.append(event)
    return names, dtypes, chosen


def _rows(events: Sequence[dict[str, Any]], key: str, count: int) -> list[list[float | None]]:
    columns = [[as_number(v) for v in e.get(key, ())] or [None] * count for e in events]
    return [[c[i] if i < len(c) else None for c in columns] for i in range(count)]

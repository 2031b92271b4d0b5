"""The HTML page of `stayfinite diff`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from .html import templates

__all__ = ["Bar", "bars", "render_diff"]

_MAX_BARS = 200
_WIDTH = 460.0
_DECADES = 6
_UNUSUAL = 3.0


@dataclass(frozen=True)
class Bar:
    """One layer in the picture: the length of its bar, and the mark of the usual change."""

    layer: str
    width: float
    mark: float | None
    kind: str
    """usual | unusual | broken"""
    label: str
    direction: str


def render_diff(report: Mapping[str, Any]) -> str:
    """Render the page from the plain data of `DiffReport.to_json`."""
    layers = [d for d in report.get("layers", ()) if d.get("num_changed")]
    page = templates().get_template("diff.html.jinja")
    return page.render(
        report=report, bars=bars(layers), num_hidden=max(0, len(layers) - _MAX_BARS),
        ticks=_ticks(), width=_WIDTH, version=__version__,
    )  # fmt: skip


def bars(layers: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The bars in the order of the model, on a logarithmic scale."""
    return [_bar(d) for d in layers[:_MAX_BARS]]


def _bar(d: Mapping[str, Any]) -> Bar:
    moved, usual = d.get("relative_change"), d.get("usual")
    if not isinstance(moved, (int, float)):
        counts = f"{d.get('num_nonfinite_a', 0)} in A, {d.get('num_nonfinite_b', 0)} in B"
        return Bar(str(d["layer"]), _WIDTH, None, "broken", f"non-finite: {counts}", "")
    label, kind, mark = f"{moved:.2%}", "usual", None
    if isinstance(usual, (int, float)) and usual > 0:
        label += f", {moved / usual:.1f}x the usual"
        kind = "unusual" if moved / usual >= _UNUSUAL else "usual"
        mark = _place(usual)
    return Bar(str(d["layer"]), _place(moved), mark, kind, label, _direction(d))


def _direction(d: Mapping[str, Any]) -> str:
    growth, angle = d.get("growth"), d.get("angle")
    parts = []
    if isinstance(growth, (int, float)):
        parts.append(f"norm {growth:+.1%}")
    if isinstance(angle, (int, float)):
        parts.append(f"turned {angle:.1f}°")
    return ", ".join(parts)


def _place(value: float) -> float:
    """The position on a scale from 0.0001 % at the left edge to 100 % at the right one.

    >>> _place(1.0), _place(0.0), round(_place(1e-3))
    (460.0, 0.0, 230)
    """
    if value <= 0:
        return 0.0
    share = (math.log10(value) + _DECADES) / _DECADES
    return _WIDTH * max(0.0, min(1.0, share))


def _ticks() -> list[tuple[float, str]]:
    return [(_place(10.0**-i), f"{10.0**-i:.4%}".rstrip("0%").rstrip(".") + " %") for i in range(5)]

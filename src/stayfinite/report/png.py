"""The curves as PNG files, for slides and issues. Needs matplotlib (`stayfinite[plots]`)."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError
from .model import Plot, RunView

__all__ = ["write_pngs"]


def write_pngs(view: RunView, folder: str | Path) -> list[Path]:
    """Write one file per plot; returns their paths."""
    try:
        figures = import_module("matplotlib.figure")
        agg = import_module("matplotlib.backends.backend_agg")
    except ImportError as e:
        raise MissingExtraError("--png", "plots") from e

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for plot in view.plots:
        figure = figures.Figure(figsize=(8, 3.2), dpi=150, layout="constrained")
        agg.FigureCanvasAgg(figure)
        _draw(figure.add_subplot(), plot, view)
        path = folder / f"{plot.name}.png"
        figure.savefig(path)
        written.append(path)
    return written


def _draw(axes: Any, plot: Plot, view: RunView) -> None:
    for name, s in plot.series.items():
        mean = [v if v is not None else math.nan for v in s.mean]
        (line,) = axes.plot(s.x, mean, linewidth=1, label=_plain(name))
        low = [v if v is not None else math.nan for v in s.low]
        high = [v if v is not None else math.nan for v in s.high]
        if any(a != b for a, b in zip(low, high) if not math.isnan(a)):
            axes.fill_between(s.x, low, high, alpha=0.2, linewidth=0, color=line.get_color())
        bad = [x for x, b in zip(s.x, s.bad) if b]
        if bad:
            # At the top edge on any scale, because a NaN has no height.
            axes.plot(bad, [0.97] * len(bad), "v", color="tab:red", markersize=5, clip_on=False,
                      transform=axes.get_xaxis_transform())  # fmt: skip
    for incident in view.incidents:
        axes.axvline(incident.event.step, color="tab:red", linestyle=":", linewidth=0.8)
    has_positive = any(v is not None and v > 0 for s in plot.series.values() for v in s.mean)
    if plot.is_log and has_positive:
        axes.set_yscale("log")
    axes.set_title(plot.title)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    if len(plot.series) > 1:
        axes.legend()


def _plain(name: str) -> str:
    """Escape a label: matplotlib treats $ as mathematics and hides labels with a leading _."""
    return name.replace("$", r"\$").lstrip("_") or "?"

"""Sends figures and incidents to other tools. NaN values are shown, not dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ..model import RunView
from .base import Sink

__all__ = ["SINKS", "Sink", "export", "make_sink"]


def _tensorboard(folder: Path, place: str | None) -> Sink:
    from .tensorboard import TensorBoardSink

    return TensorBoardSink(folder, place)


def _wandb(folder: Path, place: str | None) -> Sink:
    from .wandb import WandbSink

    return WandbSink(folder, place)


def _mlflow(folder: Path, place: str | None) -> Sink:
    from .mlflow import MlflowSink

    return MlflowSink(folder, place)


def _logging(folder: Path, place: str | None) -> Sink:
    from .log import LoggingSink

    return LoggingSink(folder, place)


SINKS: dict[str, Callable[[Path, str | None], Sink]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "logging": _logging,
}


def make_sink(spec: str, folder: str | Path) -> Sink:
    """`name` or `name:PLACE`; without a place it goes into the run folder.

    >>> make_sink("excel", "runs/a")
    Traceback (most recent call last):
    stayfinite.errors.UsageError: unknown sink 'excel'; known: tensorboard, wandb, mlflow, logging
    """
    name, _, place = spec.partition(":")
    if name not in SINKS:
        raise UsageError(f"unknown sink {name!r}; known: {', '.join(SINKS)}")
    return SINKS[name](Path(folder), place or None)


def export(run: str | Path, view: RunView, specs: Sequence[str]) -> None:
    """Give a finished run, as it is plotted, to the sinks."""
    folder = Path(run) if Path(run).is_dir() else Path(run).parent / f"{Path(run).stem}-sinks"
    rows = _rows(view)
    for spec in specs:
        sink = make_sink(spec, folder)
        sink.rows(rows)
        for incident in view.incidents:
            sink.show_incident(incident)
        sink.close()


def _rows(view: RunView) -> list[Mapping[str, Any]]:
    by_step: dict[float, dict[str, Any]] = {}
    for plot in view.plots:
        for name, s in plot.series.items():
            key = plot.name if name == plot.name else None
            for x, mean, bad in zip(s.x, s.mean, s.bad):
                row = by_step.setdefault(x, {"step": int(x)})
                value = float(bad) if bad else mean
                if value is None:
                    continue
                if key is None:
                    row.setdefault("parts", {})[name] = value
                else:
                    row[key] = [value] if key == "lr" else value
    return [by_step[x] for x in sorted(by_step) if math.isfinite(x)]

"""Weights & Biases, offline: nothing leaves the machine until the user runs `wandb sync`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import MissingExtraError
from ...records import Incident
from .base import Sink

__all__ = ["WandbSink"]


class WandbSink(Sink):
    """An offline run with scalars, notes and each incident's page."""

    def __init__(self, folder: Path, place: str | None = None) -> None:
        super().__init__(folder, place)
        try:
            wandb = import_module("wandb")
        except ImportError as e:
            raise MissingExtraError("the Weights & Biases sink", "sinks") from e
        self._wandb = wandb
        home = Path(place) if place else folder
        home.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        self.run: Any = wandb.init(
            mode="offline",
            dir=str(home),
            project="stayfinite",
            name=folder.absolute().name,
            settings=settings,
        )

    def scalars(self, rows: Sequence[tuple[int, dict[str, float]]]) -> None:
        # W&B wants its own step to grow; ours may be run again, so it is a value like the others.
        for step, values in rows:
            self.run.log({**values, "train_step": step})

    def note(self, step: int, text: str) -> None:
        self.run.log({"event": text, "train_step": step})

    def artifact(self, incident: Incident, page: Path) -> None:
        html = self._wandb.Html(page.read_text(encoding="utf-8"), inject=False)
        self.run.log({"incident": html, "train_step": incident.event.step})

    def close(self) -> None:
        self.run.finish()

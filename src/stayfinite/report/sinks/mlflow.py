"""MLflow with a local store: metrics with their NaN, notes as tags, the page as an artifact."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ...errors import MissingExtraError
from ...records import Incident
from .base import Sink

__all__ = ["MlflowSink"]

_BATCH = 1000


class MlflowSink(Sink):
    """One MLflow run in the store at `place` (a folder, or any tracking address)."""

    def __init__(self, folder: Path, place: str | None = None) -> None:
        super().__init__(folder, place)
        # Without this word newer releases refuse a store that is a folder.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            self._metric = import_module("mlflow.entities").Metric
            client = import_module("mlflow.tracking").MlflowClient
        except ImportError as e:
            raise MissingExtraError("the MLflow sink", "sinks") from e
        is_address = place is not None and "://" in place
        store = Path(place) if place else folder / "mlruns"
        self.address = place if is_address else store.absolute().as_uri()
        self._client = client(tracking_uri=self.address)
        known = self._client.get_experiment_by_name("stayfinite")
        number = known.experiment_id if known else self._client.create_experiment("stayfinite")
        self.run_id: str = self._client.create_run(
            number, run_name=folder.absolute().name
        ).info.run_id
        self._num_notes = 0

    def scalars(self, rows: Sequence[tuple[int, dict[str, float]]]) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._metric(key, value, now, step)
            for step, values in rows
            for key, value in values.items()
        ]
        for i in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[i : i + _BATCH])

    def note(self, step: int, text: str) -> None:
        self._num_notes += 1
        if self._num_notes <= 100:
            self._client.set_tag(self.run_id, f"event.{self._num_notes:03d}", text[:4000])

    def artifact(self, incident: Incident, page: Path) -> None:
        self._client.log_artifact(self.run_id, str(page), "incidents")

    def close(self) -> None:
        self._client.set_terminated(self.run_id)

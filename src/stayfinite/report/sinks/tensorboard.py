"""TensorBoard event files, written by TensorBoard's own writer; its charts mark NaN themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import MissingExtraError
from ...records import Incident
from ..markdown import render_markdown
from ..model import view_of_incident
from .base import Sink

__all__ = ["TensorBoardSink"]


class TensorBoardSink(Sink):
    """Scalars and text; the incident is a text card and its page lies beside the event file."""

    def __init__(self, folder: Path, place: str | None = None) -> None:
        super().__init__(folder, place)
        try:
            proto = "tensorboard.compat.proto"
            self._event = import_module(f"{proto}.event_pb2").Event
            summaries = import_module(f"{proto}.summary_pb2")
            self._tensor = import_module(f"{proto}.tensor_pb2").TensorProto
            writers = import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError as e:
            raise MissingExtraError("the TensorBoard sink", "sinks") from e
        self._summary, self._metadata = summaries.Summary, summaries.SummaryMetadata
        self.logdir = Path(place) if place else folder / "tensorboard"
        self._writer = writers.EventFileWriter(str(self.logdir))

    def scalars(self, rows: Sequence[tuple[int, dict[str, float]]]) -> None:
        for step, values in rows:
            parts = [self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]
            self._add(step, self._summary(value=parts))

    def note(self, step: int, text: str) -> None:
        self._text(step, "events", text)

    def artifact(self, incident: Incident, page: Path) -> None:
        text = render_markdown(view_of_incident(incident))
        self._text(incident.event.step, "incidents", text)
        (self.logdir / page.name).write_bytes(page.read_bytes())

    def _text(self, step: int, tag: str, text: str) -> None:
        plugin = self._metadata.PluginData(plugin_name="text")
        tensor = self._tensor(dtype="DT_STRING", string_val=[text.encode()], tensor_shape={})
        value = self._summary.Value(
            tag=tag, metadata=self._metadata(plugin_data=plugin), tensor=tensor
        )
        self._add(step, self._summary(value=[value]))

    def _add(self, step: int, summary: Any) -> None:
        event = self._event(step=step, wall_time=time.time(), summary=summary)
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()

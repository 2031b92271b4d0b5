"""Plain `logging`, for servers: a line now and then, a warning for each incident."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from ...records import Incident
from ..text import number
from .base import Sink

__all__ = ["LoggingSink"]


class LoggingSink(Sink):
    """Logger "stayfinite": INFO every `place` seconds (default 10), WARNING for an incident."""

    def __init__(self, folder: Path, place: str | None = None) -> None:
        super().__init__(folder, place)
        try:
            self._seconds = float(place) if place else 10.0
        except ValueError:
            raise UsageError(
                f"logging takes seconds between two lines, as in logging:30, got {place!r}"
            ) from None
        self._log = logging.getLogger("stayfinite")
        self._next = 0.0

    def scalars(self, rows: Sequence[tuple[int, dict[str, float]]]) -> None:
        bad = [(step, v) for step, v in rows if v.get("nonfinite")]
        for step, values in bad[:20]:
            self._log.warning("step %d  %s", step, _text(values))
        now = time.monotonic()
        if rows and now >= self._next:
            self._next = now + self._seconds
            step, values = rows[-1]
            self._log.info("step %d  %s", step, _text(values))

    def note(self, step: int, text: str) -> None:
        self._log.warning("%s", text)

    def artifact(self, incident: Incident, page: Path) -> None:
        """A log keeps no page; the incident's folder is named instead."""
        if incident.path:
            self._log.warning("incident %s saved in %s", incident.id, incident.path)


def _text(values: dict[str, float]) -> str:
    return "  ".join(f"{k} {number(v)}" for k, v in values.items() if k != "nonfinite")

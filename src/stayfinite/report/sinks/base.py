"""Shared parts of all sinks: journal lines to scalars, events to pages."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...records import Incident
from ..text import headline

__all__ = ["Sink"]

_SCALARS = ("loss", "grad_norm", "scale", "update_ratio", "ms")


class Sink:
    """Takes what a journal writes. Subclasses say how a scalar and an incident are kept."""

    def __init__(self, folder: Path, place: str | None) -> None:
        self.folder = folder
        self.place = place

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.scalars([(int(row["step"]), _scalars(row)) for row in rows])

    def event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "incident":
            file = self.folder / "incidents" / str(event.get("id")) / "incident.json"
            try:
                self.show_incident(Incident.from_json(file.read_text(encoding="utf-8")))
            except OSError:
                self.note(int(event["step"]), str(event.get("text", "")))
        elif event.get("event") == "layers" and event.get("grad_norm") is not None:
            self.scalars([(int(event["step"]), {"sampled_grad_norm": event["grad_norm"]})])
        elif event.get("event") == "checkpoint":
            text = f"checkpoint {event.get('status')}: {event.get('path')}"
            self.note(int(event["step"]), text)

    def show_incident(self, incident: Incident) -> None:
        """Its headline as an event, its page as an artifact."""
        self.note(incident.event.step, headline(incident))
        from ..html import incident_page

        with tempfile.TemporaryDirectory() as scratch:
            page = Path(scratch) / f"{incident.id}.html"
            page.write_text(incident_page(incident), encoding="utf-8", errors="backslashreplace")
            self.artifact(incident, page)

    def scalars(self, rows: Sequence[tuple[int, dict[str, float]]]) -> None:
        """(step, name -> value); values may be NaN or Inf."""
        raise NotImplementedError

    def note(self, step: int, text: str) -> None:
        """Something to read at that step."""
        raise NotImplementedError

    def artifact(self, incident: Incident, page: Path) -> None:
        """Keep a copy of the page; the file itself goes away."""
        raise NotImplementedError

    def close(self) -> None:
        """The run is over."""


def _scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a step, and how many of them are not finite: a curve that every tool draws."""
    found: dict[str, float] = {}
    for name in _SCALARS:
        if isinstance(row.get(name), (int, float)):
            found[name] = float(row[name])
    rates = row.get("lr") or ()
    for i, rate in enumerate(rates):
        found["lr" if len(rates) == 1 else f"lr/{i}"] = float(rate)
    for name, value in (row.get("parts") or {}).items():
        if isinstance(value, (int, float)):
            found[f"parts/{name}"] = float(value)
    found["nonfinite"] = float(sum(not math.isfinite(v) for v in found.values()))
    if row.get("applied") is False:
        found["skipped"] = 1.0
    return found

"""Stores incidents in the run folder. An unwritable folder never stops a training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..private import make_folder, open_private
from ..records import Incident
from ..saying import say
from .fixes import advice, first_fix
from .sources import SOURCES, collect_sources, dump_sources
from .text import headline, render

__all__ = ["RunFolder"]


class RunFolder:
    """Saves each incident as `incidents/<id>/incident.json` with the readable text beside it."""

    def __init__(
        self, path: str | Path | None, say: Callable[[Incident], None] | None = None
    ) -> None:
        self.path = Path(path) if path is not None else None
        self._say = say or _one_line

    def save(self, incident: Incident) -> Incident:
        """Write it, then tell of it."""
        if self.path is not None:
            home = self.path / "incidents" / incident.id
            incident = replace(incident, path=str(home))
            try:
                make_folder(home)
                _write(home / "incident.json", incident.to_json() + "\n")
                _write(home / "incident.txt", render(incident) + "\n")
                if sources := collect_sources(incident):
                    _write(home / SOURCES, dump_sources(sources))
            except OSError as e:
                incident = replace(incident, path=None)
                warn_unwritable(self.path, e)
        self._say(incident)
        return incident


_unwritable: set[Path] = set()


def warn_unwritable(folder: Path, error: OSError) -> None:
    """Say once for each folder that nothing can be kept in it."""
    if folder not in _unwritable:
        _unwritable.add(folder)
        say(
            f"stayfinite: cannot write to {folder} ({error.strerror or error}); "
            "the training goes on, incidents are not saved"
        )


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a reader never sees half an incident."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8", opener=open_private) as handle:
        handle.write(text)
    os.replace(temporary, path)


def _one_line(incident: Incident) -> None:
    where = f" (saved in {incident.path})" if incident.path else ""
    fix = first_fix(incident)
    others = advice(incident)
    if fix is not None:
        more = f"\n  fix: {fix.title} [proved]"
        more += f"\n  try: stayfinite fix {incident.path}" if incident.path else ""
    else:
        more = f"\n  try: {others[0].title} [{others[0].status}]" if others else ""
    say(f"stayfinite: {headline(incident)}{where}{more}")

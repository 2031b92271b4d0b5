"""Stores incidents in the run folder. An unwritable folder never stops a training.

The state for a replay (a capsule, about three times the model's size) is kept for one incident of each kind, up to a total
limit: a run that fails a thousand times at the same line must not fill the disk.
"""

from __future__ import annotations

import contextlib
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

__all__ = ["CAPSULE", "MAX_BYTES", "MAX_TOTAL_BYTES", "CapsuleStore", "RunFolder", "kind_of"]

CAPSULE = "capsule.pt"
MAX_BYTES = 1 << 29
"""The limit for one capsule; the report says so if it is exceeded."""
MAX_TOTAL_BYTES = 1 << 30
"""The limit for all capsules of a run folder."""

Kind = tuple[object, ...]


class RunFolder:
    """Saves each incident as `incidents/<id>/incident.json`, with `incident.txt` for people."""

    def __init__(
        self, path: str | Path | None, say: Callable[[Incident], None] | None = None
    ) -> None:
        self.path = Path(path) if path is not None else None
        self._say = say or _one_line

    def save(self, incident: Incident) -> Incident:
        """Save the incident, then print it."""
        if self.path is not None:
            home = self.path / "incidents" / incident.id
            incident = replace(incident, path=str(home))
            try:
                make_folder(home)
                # With line breaks it takes Python's own encoder, ten times as long as the one in C.
                indent = None if incident.same_as else 2
                _write(home / "incident.json", incident.to_json(indent) + "\n")
                _write(home / "incident.txt", render(incident) + "\n")
                # The one that it repeats has the same sources.
                if not incident.same_as and (sources := collect_sources(incident)):
                    _write(home / SOURCES, dump_sources(sources))
            except OSError as e:
                incident = replace(incident, path=None)
                warn_unwritable(self.path, e)
        self._say(incident)
        return incident


_unwritable: set[Path] = set()


def warn_unwritable(folder: Path, error: OSError) -> None:
    """Print once per folder that it is not writable."""
    if folder not in _unwritable:
        _unwritable.add(folder)
        say(
            f"stayfinite: cannot write to {folder} ({error.strerror or error}); "
            "the training goes on, incidents are not saved"
        )


def _write(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
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


def kind_of(incident: Incident) -> Kind:
    """A key that is equal for equal incidents: the line and the symptom."""
    at, event = incident.location, incident.event
    return (at.op, at.file, at.line, event.phase, event.symptom)


class CapsuleStore:
    """The capsules of one run folder.

    `refuses` is called before anything is copied. `write` writes the file completely or not at all, readable for the owner only.
    """

    def __init__(self, run: str | Path, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._folder = Path(run) / "incidents"
        self._max_total_bytes = max_total_bytes
        self._kept: dict[Kind, str] = {}

    def refuses(self, incident: Incident, num_bytes: int) -> str:
        """The reason why this incident gets no capsule, or ""."""
        known = self._kept.get(kind_of(incident))
        if known is not None and known != incident.id:
            return f"no capsule of its own: the same as {known}, whose state is saved"
        if num_bytes > MAX_BYTES:
            return f"no capsule: about {num_bytes >> 20} MB, the limit is {MAX_BYTES >> 20} MB"
        used = self.num_bytes
        if used + num_bytes > self._max_total_bytes:
            limit = self._max_total_bytes >> 20
            return f"no capsule: this run has {used >> 20} MB of them, the limit is {limit} MB"
        return ""

    @property
    def num_bytes(self) -> int:
        """The total size of all capsules in the folder, including those of earlier sessions."""
        total = 0
        for path in self._folder.glob(f"*/{CAPSULE}"):
            try:
                total += path.stat().st_size
            except OSError:
                continue
        return total

    def write(self, incident: Incident, save: Callable[[Path], object]) -> str:
        """Let `save` write the capsule; returns the reason if that failed, else ""."""
        home = self._folder / incident.id
        temporary = home / f".{CAPSULE}.{os.getpid()}"
        try:
            make_folder(home)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            save(temporary)
            os.chmod(temporary, 0o600)
            os.replace(temporary, home / CAPSULE)
        except OSError as e:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return f"no capsule: {e.strerror or e}"
        self._kept[kind_of(incident)] = incident.id
        return ""

"""Saves the source lines around an incident when it happens.

An incident folder may come from somebody else, so a report must not open the paths in it. Instead the process in which the
incident happened stores the lines.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..records import Incident
from .reading import read_json

__all__ = ["SOURCES", "Sources", "collect_sources", "dump_sources", "load_sources"]

SOURCES = "sources.json"
_RADIUS = 4
_MAX_PLACES = 64
_MAX_LINE = 400
_MAX_BYTES = 1 << 20

Sources = dict[str, list[tuple[int, str]]]
"""Maps `file:line` to the numbered lines around it."""


def _places(incident: Incident) -> Iterator[tuple[str, int, str]]:
    at = incident.location
    if at.file and at.line and at.source:
        yield at.file, at.line, at.source
    for link in at.chain:
        if link.file and link.line and link.source:
            yield link.file, link.line, link.source
    for fix in incident.diagnosis.fixes:
        if fix.file and fix.line and fix.before:
            yield fix.file, fix.line, fix.before.splitlines()[0] if fix.before.strip() else ""


def collect_sources(incident: Incident) -> Sources:
    """Collect the lines around every line that the incident names, if the file still has that line.

    Only for an incident of this process.
    """
    found: Sources = {}
    for file, line, source in _places(incident):
        key = f"{file}:{line}"
        if key in found or len(found) >= _MAX_PLACES or file.startswith("<"):
            continue
        if linecache.getline(file, line).strip() != source.strip():
            continue
        first = max(1, line - _RADIUS)
        numbers = range(first, line + _RADIUS + 1)
        lines = [(n, linecache.getline(file, n).rstrip("\n")[:_MAX_LINE]) for n in numbers]
        total = len(linecache.getlines(file))
        found[key] = [(n, text) for n, text in lines if n <= total]
    return found


def dump_sources(sources: Sources) -> str:
    return json.dumps(sources, indent=1) + "\n"


def load_sources(folder: Path) -> Sources:
    """Read the stored lines of an incident; empty if they are missing or damaged."""
    plain = read_json(folder / SOURCES, _MAX_BYTES)
    if not isinstance(plain, dict):
        return {}
    return {k: rows for k, v in list(plain.items())[:_MAX_PLACES] if (rows := _rows(v))}


def _rows(value: Any) -> list[tuple[int, str]]:
    if not isinstance(value, list):
        return []
    rows = [r for r in value[: 2 * _RADIUS + 1] if isinstance(r, list) and len(r) == 2]
    return [(r[0], r[1][:_MAX_LINE]) for r in rows if type(r[0]) is int and isinstance(r[1], str)]

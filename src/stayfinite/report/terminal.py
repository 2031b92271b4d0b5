"""Prints incidents: in full the first time, one line when they repeat."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from ..records import Event, Incident
from ..saying import flush_output, is_terminal, say
from .text import headline, render, short_path

__all__ = ["say_incident", "say_summary", "say_warning"]

_num_reported: Counter[tuple[object, ...]] = Counter()
_NUM_REPEATS = 3
_HEADINGS = (
    "where",
    "chain",
    "values",
    "this step",
    "why",
    "proof",
    "try",
    "also known",
    "experiments",
    "done",
    "saved",
    "more",
)


def say_incident(incident: Incident) -> None:
    """Print an incident to standard error, so that the script's own output is unchanged."""
    key = (
        incident.location.op,
        incident.location.file,
        incident.location.line,
        incident.diagnosis.cause,
        incident.event.symptom,
    )
    flush_output()
    _num_reported[key] += 1
    count = _num_reported[key] - 1
    if count:
        if count <= _NUM_REPEATS:
            say(f"stayfinite: {headline(incident)} (as before)")
        elif _is_printed(count):
            note = f"(as before, {count} times by now)"
            say(f"stayfinite: {headline(incident)} {note}")
        return
    text = render(incident)
    if is_terminal():
        _say_in_color(text)
    else:
        rule = "-" * 78
        say(f"{rule}\n{text}\n{rule}")


def say_warning(event: Event, count: int) -> None:
    """Print a warning in one line; this is number `count` of its kind, and repetitions become rarer."""
    if not _is_printed(count):
        return
    note = f" ({count} such warnings by now)" if count > _NUM_REPEATS else ""
    say(f"stayfinite: step {event.step}: warning: {event.message}{note}")


def _is_printed(count: int) -> bool:
    """Whether to print number `count`: the first three, then 4, 8, 16, …"""
    return count <= _NUM_REPEATS or count & (count - 1) == 0


def _say_in_color(text: str) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    styled = Text()
    for i, line in enumerate(text.splitlines()):
        styled.append(line + "\n", style="bold red" if i == 0 else _style(line))
    styled.rstrip()
    Console(stderr=True, highlight=False).print(Panel(styled, border_style="red"))


def _style(line: str) -> str:
    """
    >>> [_style(x) for x in ("where", "    +    x = 1", "    -    x = 0", "    --- a/t.py", "  why  x")]
    ['bold', 'green', 'red', 'dim', '']
    """
    if line.startswith(_HEADINGS):
        return "bold"
    body = line.removeprefix("    ")
    if body.startswith(("--- ", "+++ ", "@@ ")):
        return "dim"
    if "born here" in line:
        return "yellow"
    return {"+": "green", "-": "red"}.get(body[:1], "")


def say_summary(incidents: list[Incident], how_many: str, folder: Path) -> None:
    """Print the summary of a run with incidents, and what to do next; `how_many` steps or batches it had."""
    first = incidents[0]
    count = f"{len(incidents)} incident{'s' if len(incidents) > 1 else ''}"
    where = short_path(str(folder.absolute()))
    diffs = (f.diff for i in incidents for f in i.diagnosis.fixes if f.status == "proved")
    command = "fix" if any(diffs) else "report"
    say(
        f"stayfinite: {count} in {how_many}; first: {headline(first)}\n"
        f"stayfinite: details in {where}\n"
        f"stayfinite: next: stayfinite {command} {shlex.quote(where)}"
    )

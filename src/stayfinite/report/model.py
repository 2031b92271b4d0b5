"""The data of a run that HTML, Markdown, JSON and plots all show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..plain import to_plain
from ..records import Incident
from .curves import Series, as_number
from .foreign import KeyMap
from .journal_read import JournalData, journal_of, read_journal
from .layers import HeatMap, heat_map
from .rank_rows import RankRow, rank_rows, story_of_ranks
from .reading import MAX_SECONDS, read_incident
from .sources import Sources, load_sources
from .text import number

__all__ = ["Plot", "RunView", "load_run", "notices", "view_of_incident"]

_TITLES = {
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "scale": "Loss scale",
    "update_ratio": "Update ratio (update per step / weight)",
    "ms": "Step time (ms)",
}
_MAX_INCIDENTS = 2000
_MAX_SOURCES = 5000
_MAX_INCIDENT_BYTES = 128 << 20
_LOG = {"loss", "grad_norm", "scale", "update_ratio"}


@dataclass
class Plot:
    """One picture: a quantity, or the loss with its parts."""

    name: str
    title: str
    series: dict[str, Series]
    is_log: bool


@dataclass
class RunView:
    """Everything that a report can show."""

    name: str
    path: str
    data: JournalData
    incidents: list[Incident] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    heat: HeatMap | None = None
    environment: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[RankRow] = field(default_factory=list)
    """The ranks side by side, if there are several."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    """Warnings and other events: `step`, `kind`, `text`."""
    sources: Sources = field(default_factory=dict)
    """The source lines around those that incidents name, as stored with them."""

    def to_plain(self) -> dict[str, Any]:
        """The data for `--format json`; NaN and Inf are strings, as in a journal."""
        curves = self.data.curves
        return {
            "kind": "stayfinite.report",
            "schema": 1,
            "name": self.name,
            "path": self.path,
            "facts": self.facts,
            "findings": self.findings,
            "problems": self.problems,
            "environment": self.environment,
            "steps_per_point": curves.every,
            "plots": {p.name: to_plain(p.series) for p in self.plots},
            "nonfinite": [
                {"first": s.first, "last": s.last, "steps": s.num_steps, "in": sorted(s.names)}
                for s in curves.spans
            ],
            "skipped": to_plain(self.ledger),
            "ranks": to_plain(self.ranks),
            "checkpoints": to_plain(self.checkpoints),
            "notices": to_plain(self.notices),
            "layers": to_plain(self.heat) if self.heat else None,
            "incidents": [to_plain(i) for i in self.incidents],
        }


def load_run(
    path: str | Path,
    *,
    session: int | None = None,
    keys: KeyMap | None = None,
    points: int = 2000,
    rank: int = 0,
    max_seconds: float = MAX_SECONDS,
) -> RunView:
    """Read a run folder, a JSONL log, or one incident."""
    path = Path(path)
    if path.name == "incident.json" or (path / "incident.json").exists():
        incident, folder = read_incident(path)
        return view_of_incident(incident, load_sources(folder))
    journal = journal_of(path, rank)
    data = JournalData()
    if journal is not None:
        data = read_journal(journal, points, session, keys, max_seconds)
    if data.is_foreign and data.curves.num_rows == 0:
        raise UsageError(
            f"{path}: no line has a loss, gradient norm, learning rate or scale under a known name\n"
            "  try: say which key is which, as in --map loss=objective --map step=n"
        )
    view = RunView(name=path.absolute().name, path=str(path), data=data)
    if path.is_dir():
        _load_incidents(view, path / "incidents")
        view.ranks = rank_rows(path, view.incidents)
    _fill(view)
    return view


def view_of_incident(incident: Incident, sources: Sources | None = None) -> RunView:
    """The view of one incident: its steps are the incident's history."""
    data = JournalData()
    data.curves.feed([_history_row(r) for r in to_plain(list(incident.history))])
    event = incident.event
    figures = {"loss": event.loss, "grad_norm": event.grad_norm, "lr": list(event.lr)}
    row = {"step": event.step, "epoch": event.epoch, "applied": False, **figures}
    data.curves.feed([{k: v for k, v in row.items() if v not in (None, [])}])
    data.curves.finish()
    view = RunView(
        name=incident.id,
        path=incident.path or "",
        data=data,
        incidents=[incident],
        sources=sources or {},
    )
    _fill(view)
    return view


def _history_row(record: Mapping[str, Any]) -> dict[str, Any]:
    names = ("step", "epoch", "loss", "grad_norm", "lr", "scale")
    row = {n: record[n] for n in names if record[n] not in (None, [])}
    return row if record["is_applied"] else {**row, "applied": False}


def _load_incidents(view: RunView, folder: Path) -> None:
    own = {e.get("id") for e in view.data.of_kind("incident")}
    files = sorted(folder.glob("*/incident.json"))
    if len(files) > _MAX_INCIDENTS:
        view.problems.append(f"{len(files):,} incidents; the first {_MAX_INCIDENTS:,} are shown")
    num_bytes = 0
    for file in files[:_MAX_INCIDENTS]:
        num_bytes += file.stat().st_size
        if num_bytes > _MAX_INCIDENT_BYTES:
            limit = _MAX_INCIDENT_BYTES >> 20
            view.problems.append(f"the incidents have more than {limit} MB; the rest is left out")
            break
        if view.data.num_sessions > 1 and file.parent.name not in own:
            continue  # of another session in the same folder
        try:
            incident, home = read_incident(file)
        except UsageError as e:
            view.problems.append(str(e))
            continue
        view.incidents.append(incident)
        if len(view.sources) < _MAX_SOURCES:
            view.sources.update(load_sources(home))
    view.incidents.sort(key=lambda i: (i.event.step, i.created))


def _fill(view: RunView) -> None:
    data, curves = view.data, view.data.curves
    _add_layer_series(view)
    view.plots = _plots(curves.series)
    view.heat = heat_map(data.of_kind("layers"))
    view.checkpoints = data.of_kind("checkpoint")
    view.notices = notices(data)
    view.environment = _environment(view)
    view.facts = _facts(view)
    view.findings = _findings(view)
    view.ledger = _ledger(view)
    if data.cut:
        view.problems.append(data.cut)
    if data.num_broken:
        view.problems.append(
            f"{data.num_broken} line{'s' if data.num_broken > 1 else ''} of the log "
            "could not be read and were left out"
        )


def _add_layer_series(view: RunView) -> None:
    """Quantities that are measured only sometimes: the update ratio, and the norm if the loop has none."""
    ratio, norm = Series(), Series()
    for event in view.data.of_kind("layers"):
        updates = [n for v in event.get("update", ()) if (n := as_number(v)) is not None]
        if updates:
            ratio._add(event["step"], [sorted(updates)[len(updates) // 2]])
        if event.get("grad_norm") is not None:
            norm._add(event["step"], [event["grad_norm"]])
    if ratio.x:
        view.data.curves.series["update_ratio"] = ratio
    known = view.data.curves.series.get("grad_norm")
    if norm.x and (known is None or not any(v is not None for v in known.mean)):
        view.data.curves.series["grad_norm"] = norm


def _plots(series: Mapping[str, Series]) -> list[Plot]:
    plots = []
    for name, title in _TITLES.items():
        own = series.get(name)
        if own is None or not own.x:
            continue
        shown = {name: own}
        if name == "loss":
            shown |= {n.removeprefix("parts."): s for n, s in series.items() if "parts." in n}
        plots.append(Plot(name, title, shown, name in _LOG))
    return plots


def notices(data: JournalData) -> list[dict[str, Any]]:
    """Events with a text that have no section of their own."""
    others = ("incident", "layers", "checkpoint", "end")
    return [
        {"step": e.get("step"), "kind": str(e["event"]), "text": str(e["text"])}
        for e in data.events
        if e.get("text") and e.get("event") not in others
    ]


def _environment(view: RunView) -> dict[str, str]:
    own = {"kind", "schema", "session", "started", "every"}
    found = {k: str(v) for k, v in view.data.head.items() if k not in own}
    for incident in view.incidents:
        found = {**incident.environment, **found}
    return found


def _steps(count: int, first: int | None, last: int) -> str:
    """The number of steps. With gradient accumulation a step has the number of its last batch, so numbers are missing.

    >>> _steps(160, 0, 159), _steps(160, 1, 319)
    ('160 (0 to 159)', '160 (up to batch 319)')

    An incident before the first step, or a resumed run, repeats a number.

    >>> _steps(161, 0, 159)
    '160 (0 to 159)'
    """
    numbers = count if first is None else last - first + 1
    if numbers <= count:
        return f"{numbers:,} ({first} to {last})"
    return f"{count:,} (up to batch {last})"


def _facts(view: RunView) -> dict[str, str]:
    data, curves = view.data, view.data.curves
    facts: dict[str, str] = {}
    if curves.num_rows:
        last = curves.last_row
        facts["steps"] = _steps(curves.num_rows, curves.first_step, last["step"])
        if last.get("epoch") is not None:
            facts["epoch"] = str(last["epoch"])
        loss = curves.series.get("loss")
        if loss is not None and loss.x:
            facts["loss"] = number(loss.last)
    if isinstance(curves.last_row.get("t"), (int, float)):
        facts["time"] = _duration(float(curves.last_row["t"]))
    if data.head.get("started"):
        facts["started"] = str(data.head["started"])[:19].replace("T", " ")
        facts["state"] = "ended" if data.is_ended else "running or killed"
    if data.num_sessions > 1:
        facts["session"] = f"{data.session} of {data.num_sessions}"
    facts["skipped"] = f"{curves.num_skipped:,}"
    facts["incidents"] = str(len(view.incidents))
    return facts


def _duration(seconds: float) -> str:
    """
    >>> _duration(12.34), _duration(3700), _duration(200000)
    ('12.3 s', '1 h 01 min', '2 d 7 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60:02d} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"


def _findings(view: RunView) -> list[str]:
    """One sentence about the curves."""
    curves = view.data.curves
    found = []
    if curves.spans:
        first, total = curves.spans[0], sum(s.num_steps for s in curves.spans)
        names = " and ".join(sorted(n.removeprefix("parts.") for n in first.names))
        found.append(f"{names} first not finite at step {first.first:,}")
        if total > 1:
            found.append(
                f"{total:,} of {curves.num_rows:,} steps ({total / curves.num_rows:.1%}) had a "
                f"value that is not finite"
            )
        longest = max(curves.spans, key=lambda s: s.num_steps)
        if longest.num_steps > 10:
            found.append(
                f"{longest.num_steps:,} of them in a row, from step {longest.first:,} "
                f"to {longest.last:,}"
            )
    causes = Counter(i.diagnosis.cause for i in view.incidents if i.diagnosis.cause)
    for cause, count in causes.most_common():
        found.append(f"{cause}: {count} incident{'s' if count > 1 else ''}")
    if curves.longest_skip > 1:
        found.append(f"at most {curves.longest_skip} skipped steps in a row")
    return found + story_of_ranks(view.ranks)


def _ledger(view: RunView) -> list[dict[str, Any]]:
    """Each step that was not applied, with the reason."""
    by_step = {i.event.step: i for i in view.incidents}
    entries = []
    for row in view.data.curves.skipped:
        incident = by_step.get(row["step"])
        flags = row.get("flags") or []
        reason = "the scaler's own skip" if "scaler_skip" in flags else "not applied"
        if incident is not None:
            reason = incident.diagnosis.cause or incident.event.symptom
        entries.append(
            {
                "step": row["step"],
                "epoch": row.get("epoch"),
                "loss": as_number(row.get("loss")),
                "reason": reason,
                "incident": incident.id if incident is not None else None,
            }
        )
    return entries

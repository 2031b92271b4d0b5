"""The HTML page of a run, in one file. Its templates are in `templates/`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..records import Fix, Incident, Link, Operand, TensorStats
from .curves import Series
from .fixes import advice, diff_lines, first_fix, proof_words, refuted
from .model import Plot, RunView
from .rank_rows import part_lines
from .sources import Sources, collect_sources
from .text import _what, born_in, headline, number, short_path

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["Live", "incident_page", "render_html", "templates"]

_ROLES = {
    "birth": "born here",
    "carrier": "carried on",
    "sentinel": "written on purpose",
    "source": "came in with",
    "symptom": "seen here",
}
_MAX_STORIES = 40


@dataclass
class Group:
    """Equal incidents; only the first is shown in full."""

    first: Incident
    others: list[Incident]

    @property
    def history(self) -> bool:
        return sum(r.loss is not None for r in self.first.history) > 1


@dataclass(frozen=True)
class Live:
    """The settings of a live page: the polling interval, and the version that it shows."""

    interval_ms: int
    version: str


def render_html(view: RunView, live: Live | None = None) -> str:
    """Render the page; with `live`, it polls its server for changes."""
    groups = _groups(view.incidents)
    page = templates().get_template("page.html.jinja")
    return page.render(
        view=view, groups=groups, payload=_payload(view, groups), version=__version__, live=live
    )


def incident_page(incident: Incident) -> str:
    """Render the page of one incident of this process, for sinks."""
    from .model import view_of_incident

    return render_html(view_of_incident(incident, collect_sources(incident)))


@lru_cache
def templates() -> Environment:
    """Everything is escaped, except the results of helpers that return Markup."""
    from jinja2 import Environment, FileSystemLoader

    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=lambda name: name is None or name.endswith((".html.jinja", ".js.jinja")),
    )
    env.filters.update(
        number=number,
        short_path=short_path,
        first_fix=first_fix,
        advice=advice,
        refuted=refuted,
        proof=proof_words,
        ranks=part_lines,
        born=lambda incident: born_in(incident.location),
        what=_what,
        role=lambda role: _ROLES.get(role, role),
        slug=lambda text: re.sub(r"[^a-z0-9]+", "-", str(text).lower()),
        source=source_context,
        tensors=_tensors,
        histogram=_histogram,
        diff=unified_diff,
    )
    return env


def _groups(incidents: list[Incident]) -> list[Group]:
    groups: dict[Any, Group] = {}
    for incident in incidents:
        at = incident.location
        key: Any = (at.op, at.file, at.line, incident.diagnosis.cause, incident.event.symptom)
        if key not in groups and len(groups) >= _MAX_STORIES:
            key = next(reversed(groups))
        if key in groups:
            groups[key].others.append(incident)
        else:
            groups[key] = Group(incident, [])
    return list(groups.values())


def _payload(view: RunView, groups: list[Group]) -> Any:
    """The data for the script. `<` is escaped, so nothing can end the element early."""
    from markupsafe import Markup

    plots = [_plot(p, bool(view.data.curves.every > 1)) for p in view.plots]
    plots += [_history(g.first) for g in groups if g.history]
    heat = view.heat
    data = {
        "plots": plots,
        "incidents": [
            {"step": i.event.step, "id": i.id, "text": headline(i)} for i in view.incidents
        ],
        "heat": {k: _rounded(v) for k, v in vars(heat).items()} if heat is not None else None,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _plot(plot: Plot, has_band: bool) -> dict[str, Any]:
    series = [_series(name, s, has_band) for name, s in plot.series.items()]
    return {"name": plot.name, "title": plot.title, "log": plot.is_log, "series": series}


def _series(name: str, s: Series, has_band: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": name,
        "x": s.x,
        "mean": _rounded(s.mean),
        "bad": {i: b for i, b in enumerate(s.bad) if b},
    }
    if has_band:
        plain |= {"low": _rounded(s.low), "high": _rounded(s.high)}
    return plain


def _history(incident: Incident) -> dict[str, Any]:
    rows = [(r.step, r.loss) for r in incident.history if r.loss is not None]
    rows.append((incident.event.step, incident.event.loss or math.nan))
    finite = [v if math.isfinite(v) else None for _, v in rows]
    series = {
        "name": "loss",
        "x": [step for step, _ in rows],
        "mean": _rounded(finite),
        "bad": {i: str(v) for i, (_, v) in enumerate(rows) if not math.isfinite(v)},
    }
    if incident.event.loss is None:
        series["bad"] = {}
    title = "Loss of the steps before it"
    return {"name": incident.id, "title": title, "log": True, "own": True, "series": [series]}


def _rounded(value: Any) -> Any:
    """Six digits are more than a screen shows; JSON has no NaN."""
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def source_context(link: Link, sources: Sources) -> list[tuple[int, str, bool]]:
    """(number, text, whether it is the line) around a link, from the sources that were stored with the incident.

    No path from an incident is opened, because the incident may come from somebody else.
    """
    if link.line is None or not link.source:
        return []
    rows = sources.get(f"{link.file}:{link.line}", [])
    if not any(n == link.line and text.strip() == link.source.strip() for n, text in rows):
        return [(link.line, link.source, True)]
    return [(n, text, n == link.line) for n, text in rows]


def _tensors(link: Link) -> list[tuple[str, Operand, TensorStats]]:
    return [
        (side, o, o.stats)
        for side, operands in (("in", link.inputs), ("out", link.outputs))
        for o in operands
        if o.stats is not None
    ]


def _histogram(s: TensorStats) -> Any:
    """Bars from min to max, with square-root heights so that tails are visible."""
    from markupsafe import Markup, escape

    if not s.histogram or not any(s.histogram) or min(s.histogram) < 0 or len(s.histogram) > 256:
        return ""
    top = math.sqrt(max(s.histogram))
    bars = "".join(
        f'<rect x="{i * 4}" y="{22 - h:.1f}" width="3" height="{h:.1f}"/>'
        for i, n in enumerate(s.histogram)
        if (h := math.sqrt(n) / top * 21)
    )
    width = len(s.histogram) * 4
    label = escape(f"{number(s.min)} to {number(s.max)}")
    return Markup(
        f'<svg class="hist" width="{width}" height="22"><title>{label}</title>{bars}</svg>'
    )


def unified_diff(fix: Fix, sources: Sources) -> list[tuple[str, str]]:
    """(kind, line) of a diff that `patch` accepts if the file is unchanged."""
    if fix.diff:
        return diff_lines(fix.diff)
    if fix.before is None or fix.after is None:
        return []
    before, after = fix.before.splitlines() or [""], fix.after.splitlines() or [""]
    lines: list[tuple[str, str]] = []
    if fix.file and fix.line:
        indent = _indent(sources.get(f"{fix.file}:{fix.line}", []), fix.line, before[0])
        before, after = [indent + b for b in before], [indent + a for a in after]
        path = short_path(fix.file).lstrip("/")
        spread = [f",{len(side)}" if len(side) != 1 else "" for side in (before, after)]
        lines += [("head", f"--- a/{path}"), ("head", f"+++ b/{path}")]
        lines.append(("head", f"@@ -{fix.line}{spread[0]} +{fix.line}{spread[1]} @@"))
    lines += [("del", f"-{b}") for b in before]
    return lines + [("add", f"+{a}") for a in after]


def _indent(rows: list[tuple[int, str]], line: int, text: str) -> str:
    """The line's original indentation, which the recorded source lacks."""
    real = next((t for n, t in rows if n == line), "")
    is_same = real.strip() == text.strip() and real != text
    return real[: len(real) - len(real.lstrip())] if is_same else ""

"""An incident as a small, self-contained piece of HTML, for notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from typing import Any

__all__ = ["incident_html"]

_ROLES = {
    "birth": "born here",
    "carrier": "carried on",
    "sentinel": "written on purpose",
    "source": "came in with it",
    "symptom": "seen here",
}
_BOX = "border-left:4px solid #c0392b;padding:4px 12px;margin:6px 0;max-width:70em"
_CODE = (
    "background:rgba(127,127,127,.15);padding:4px 8px;margin:4px 0;overflow-x:auto;white-space:pre"
)


def incident_html(incident: Any) -> str:
    """The HTML of an `Incident`: where, why, what to change, what was done."""
    return f'<div style="{_BOX}">{"".join(_parts(incident))}</div>'


def _parts(incident: Any) -> Iterator[str]:
    event, location, diagnosis = incident.event, incident.location, incident.diagnosis
    symptom = f"{event.symptom} {event.name}" if event.name else f"{event.symptom}"
    state = "not finite" if event.value is None else f"{event.value:g}"
    seen = event.message or f"the {symptom} is {state}"
    yield f"<b>stayfinite: step {event.step}: {escape(seen)}</b>"
    if incident.same_as is not None:
        yield f"<div>the same as {escape(incident.same_as)}</div>"
    if location.op is not None:
        module = f" in module <code>{escape(location.module)}</code>" if location.module else ""
        yield f"<div>born in <code>{escape(location.op)}</code>{module}, {_place(location)}</div>"
    elif location.note:
        yield f"<div>{escape(location.note)}</div>"
    if location.source:
        yield f'<pre style="{_CODE}">{escape(location.source)}</pre>'
    if diagnosis.cause:
        sure = f"{diagnosis.confidence:.0%}"
        yield f"<div><b>why:</b> <code>{escape(diagnosis.cause)}</code> ({sure}). {_said(diagnosis.summary, location)}</div>"
    yield from _fixes(diagnosis.fixes, location)
    if len(location.chain) > 1:
        rows = "".join(_link(link) for link in location.chain)
        yield f"<details><summary>from birth to symptom</summary><table>{rows}</table></details>"
    yield f"<div><b>done:</b> {escape(incident.action.kind)}; {escape(incident.action.detail)}</div>"
    if incident.path:
        yield f"<div>saved: <code>{escape(incident.path)}</code></div>"


def _fixes(fixes: Any, location: Any) -> Iterator[str]:
    offered = [f for f in fixes if f.status != "refuted"]
    for fix in offered[:3]:
        yield f"<div><b>try:</b> {_said(fix.title, location)} <i>[{escape(fix.status)}]</i></div>"
        if fix.diff:
            yield f'<pre style="{_CODE}">{escape(fix.diff)}</pre>'
        elif fix.before and fix.after:
            changed = f"- {escape(fix.before.strip())}\n+ {escape(fix.after.strip())}"
            yield f'<pre style="{_CODE}">{changed}</pre>'


def _link(link: Any) -> str:
    role = _ROLES.get(link.role, link.role)
    what = link.op or link.label or ""
    cut = f"<tr><td>… {link.num_left_out} more carry it on …</td></tr>" if link.num_left_out else ""
    return (
        f"{cut}<tr><td><code>{escape(what)}</code></td><td>{role}</td><td>{_place(link)}</td></tr>"
    )


def _place(where: Any) -> str:
    if where.file is None:
        return ""
    if _is_cell(where.file):
        return f"line {where.line} of the cell"
    return f"{escape(os.path.basename(where.file))}:{where.line}"


def _said(text: str, location: Any) -> str:
    if location.file is not None and _is_cell(location.file):
        text = text.replace(f"{os.path.basename(location.file)}:", "line ")
    return escape(text)


def _is_cell(file: str) -> bool:
    """A kernel compiles a cell under the name of a temporary file, which means nothing to a reader."""
    folder, name = os.path.split(file)
    return os.path.basename(folder).startswith("ipykernel_") or name.startswith("<ipython")

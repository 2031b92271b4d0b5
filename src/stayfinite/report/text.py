"""Renders an incident as text."""

from __future__ import annotations

import math
import os
import textwrap

from ..codes import CAUSES
from ..records import Experiment, Incident, Link, Location, Operand, TensorStats
from .fixes import advice, first_fix, proof_words, refuted
from .rank_rows import part_lines

__all__ = ["born_in", "headline", "render"]

_ROLE = {
    "birth": "born here",
    "carrier": "carried on",
    "sentinel": "written on purpose",
    "source": "came in here",
    "symptom": "seen here",
}


def headline(incident: Incident) -> str:
    """One line: what, where, and what was done.

    >>> from stayfinite.records import Event
    >>> headline(Incident(id="a", event=Event(step=7, phase="loss", value=float("nan"))))
    'step 7: the loss is nan'
    """
    event, location = incident.event, incident.location
    text = f"step {event.step}: {_what(incident)}"
    if location.op:
        text += f", {born_in(location)} {location.op}"
    elif location.chain and location.chain[0].role == "source":
        text += f", from {location.chain[0].label}"
    if location.file:
        text += f" at {short_path(location.file)}:{location.line}"
    if incident.diagnosis.cause:
        text += f" ({incident.diagnosis.cause})"
    if incident.action.kind != "none":
        text += f"; {incident.action.kind.replace('_', ' ')}"
    return text


def born_in(location: Location) -> str:
    """ "born in", or "seen in" for an operator that only passed the value on."""
    role = next((c.role for c in location.chain if c.op == location.op), "birth")
    return "seen in" if role in ("carrier", "symptom") else "born in"


def _what(incident: Incident) -> str:
    event = incident.event
    if event.message:
        return event.message
    if event.symptom == "loss":
        return f"the loss is {number(event.value if event.value is not None else event.loss)}"
    if event.symptom == "learning_rate":
        return f"the learning rate is {number(event.value)}"
    if event.symptom == "gradient" and event.name is None and event.value is not None:
        return f"the norm of the gradients is {number(event.value)}"
    noun = {
        "gradient": "the gradient of",
        "parameter": "the parameter",
        "buffer": "the buffer",
        "optimizer_state": "the optimizer's",
    }.get(event.symptom, event.symptom)
    return f"{noun} {event.name or '?'} is not finite"


def number(value: float | None) -> str:
    """A number short enough for a table.

    >>> [number(v) for v in (None, 0.0, 3.0, 1234567.0, 0.00012346, float("inf"))]
    ['-', '0', '3', '1.235e+06', '0.0001235', 'inf']
    """
    if value is None:
        return "-"
    if not math.isfinite(value) or value == 0:
        return str(value).removesuffix(".0")
    return f"{value:.4g}"


def short_path(path: str) -> str:
    """The path relative to the working directory, if that is shorter."""
    if path.startswith("<"):
        return path
    for folder in ("site-packages", "dist-packages"):
        marker = f"{os.sep}{folder}{os.sep}"
        if marker in path:
            return path.split(marker)[-1]
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) and not relative.startswith("../..") else path


def render(incident: Incident) -> str:
    """The whole incident as plain text."""
    parts = [
        _first(incident),
        _action(incident),
        _where(incident.location),
        _chain(incident.location),
        _tensors(incident.location),
        _figures(incident),
        _ranks(incident),
        _evidence(incident),
        _experiments(incident),
        _advice(incident),
        _refuted(incident),
    ]
    return "\n\n".join(p for p in parts if p)


def _first(incident: Incident) -> str:
    """The summary: where, why, the change, its proof."""
    lines = [_title(incident)]
    place = _place(incident)
    if place:
        lines += _wrapped(place, "  where  ")
        if incident.location.source and incident.location.file:
            lines.append(f"           {incident.location.source}")
    d = incident.diagnosis
    if d.cause:
        lines += _wrapped(f"{d.cause} (confidence {d.confidence:.0%}): {d.summary}", "  why    ")
    elif d.summary:
        lines += _wrapped(d.summary, "  why    ")
    lines += _set_at(incident.location)
    fix = first_fix(incident)
    if fix is not None and fix.proof is not None:
        lines += _wrapped(f"{fix.title}  [proved]", "  fix    ")
        lines += [f"    {line}".rstrip() for line in (fix.diff or "").splitlines()]
        lines += _wrapped(
            f"exactly this {'diff' if fix.diff else 'value'} was run: {proof_words(fix.proof, incident.event.step)}",
            "  proof  ",
        )
        if incident.path and fix.diff:
            lines.append(f"  apply  stayfinite fix {short_path(incident.path)} --apply")
    elif d.fixes and d.fixes[0].status == "proved":  # a setting, of which the value was run
        lines += _wrapped(f"{d.fixes[0].title}  [proved]", "  fix    ")
        lines += _wrapped(d.fixes[0].why, "  proof  ")
    elif d.fixes:
        below = "; see `try` below" if advice(incident) else ""
        lines += _wrapped(f"no change of the source was proved{below}", "  fix    ")
    return "\n".join(lines)


def _place(incident: Incident) -> str:
    """The line "where: …"."""
    location = incident.location
    parts = []
    if location.file:
        function = f" in {location.function}" if location.function else ""
        parts.append(f"{short_path(location.file)}:{location.line}{function}")
    if location.module:
        parts.append(f"module {location.module}")
    if location.op:
        parts.append(f"{born_in(location)} {location.op}")
    elif location.chain and location.chain[0].role == "source":
        parts.append(f"from {location.chain[0].label}")
    if location.first_bad:
        parts.append(f"first at {location.first_bad}")
    return ", ".join(parts)


def _title(incident: Incident) -> str:
    event = incident.event
    own = ", ".join(f"{name} = {value}" for name, value in event.counters.items())
    when = f"epoch {event.epoch}" + (f"; in the script {own}" if own else "")
    lines = [f"stayfinite: step {event.step} ({when}): {_what(incident)}"]
    if event.noticed_at_step is not None and event.noticed_at_step != event.step:
        lines.append(f"  noticed at step {event.noticed_at_step}, traced back to step {event.step}")
    lines.append(f"  phase: {event.phase}")
    return "\n".join(lines)


def _where(location: Location) -> str:
    lines = ["where"]
    if location.op:
        lines.append(f"  operator  {location.op}")
    if location.module is not None:
        lines.append(f"  module    {location.module or '(the model itself)'}")
    if location.file:
        lines.append(
            f"  line      {short_path(location.file)}:{location.line}"
            + (f"  in {location.function}" if location.function else "")
        )
        if location.source:
            lines.append(f"            {location.source}")
    if location.library_file:
        # The second line of a custom backward is the forward call in the user's file.
        label = "called at" if location.library_file == location.file else "under it "
        lines.append(f"  {label} {short_path(location.library_file)}:{location.library_line}")
        if location.library_source:
            lines.append(f"            {location.library_source}")
    if location.note:
        lines.append(f"  note      {location.note}")
    return "\n".join(lines) if len(lines) > 1 else ""


def _chain(location: Location) -> str:
    if len(location.chain) < 2:
        return ""
    lines = ["chain, from birth to symptom"]
    links = list(location.chain)
    shown = links if len(links) <= _MAX_LINKS else [*links[: _MAX_LINKS - 2], None, links[-1]]
    for link in shown:
        if link is None:
            lines.append(f"  ... {len(links) - _MAX_LINKS + 1} more carry it on ...")
            continue
        if link.num_left_out:
            lines.append(f"  ... {link.num_left_out} more carry it on ...")
        name = link.op or link.label or "not known"
        lines.append(f"  {name:<26} {_ROLE.get(link.role, link.role):<19} {_short_place(link)}")
    return "\n".join(lines)


_MAX_LINKS = 14


def _short_place(link: Link) -> str:
    place = f"{short_path(link.file)}:{link.line}" if link.file else ""
    module = f"[{link.module}]" if link.module else ""
    return " ".join(p for p in (place, module) if p)


def _tensors(location: Location) -> str:
    link = next((c for c in location.chain if c.role == "birth"), None)
    link = link or (location.chain[0] if location.chain else None)
    if link is None:
        return ""
    rows: list[tuple[str, ...]] = [
        ("tensor", "shape", "dtype", "nan", "+inf", "-inf", "zeros", "min", "max", "headroom")
    ]
    for role, operands in (("in", link.inputs), ("out", link.outputs)):
        rows += [_row(role, o, o.stats) for o in operands if o.stats is not None]
    if len(rows) == 1:
        return ""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["values at the birth" if link.role == "birth" else "values"]
    lines += ["  " + "  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
    given = [f"{o.name}={o.value}" for o in link.inputs if o.value is not None]
    if given:
        lines.append(f"  arguments: {', '.join(given)}")
    return "\n".join(lines)


def _row(role: str, operand: Operand, s: TensorStats | None) -> tuple[str, ...]:
    assert s is not None
    name = f"{role} {operand.label or operand.name}"
    headroom = f"{s.headroom_bits:.1f} bits" if s.headroom_bits is not None else "-"
    counts = [str(n) if n else "." for n in (s.num_nan, s.num_posinf, s.num_neginf, s.num_zero)]
    shape = "x".join(map(str, s.shape)) or "scalar"
    return (name, shape, s.dtype, *counts, number(s.min), number(s.max), headroom)


def _figures(incident: Incident) -> str:
    event = incident.event
    pairs = [
        ("loss", number(event.loss)),
        ("grad norm", number(event.grad_norm)),
        ("lr", ", ".join(number(v) for v in event.lr[:4]) or "-"),
        ("scale", number(event.scale)),
    ]
    shown = [f"{k} {v}" for k, v in pairs if v != "-"]
    return "this step\n  " + "   ".join(shown) if shown else ""


def _ranks(incident: Incident) -> str:
    lines = part_lines(incident.ranks)
    width = max((len(who) for who, _ in lines), default=0)
    return (
        "\n".join(["ranks", *(f"  {who:<{width}}  {what}" for who, what in lines)]) if lines else ""
    )


def _evidence(incident: Incident) -> str:
    d = incident.diagnosis
    lines: list[str] = []
    for e in d.evidence:
        lines += _wrapped(e, "  - ")
    if d.samples:
        lines.append(f"  rows of the batch that are enough to fail: {_few(d.samples)}")
    if d.dataset_indices:
        lines.append(f"  their indices in the data set: {_few(d.dataset_indices)}")
    if d.worker is not None:
        lines.append(f"  the batch was read by worker {d.worker} of the DataLoader")
    return "\n".join(["also known", *lines]) if lines else ""


def _few(numbers: tuple[int, ...], limit: int = 12) -> str:
    shown = ", ".join(map(str, numbers[:limit]))
    return shown if len(numbers) <= limit else f"{shown}, ... ({len(numbers)} in all)"


def _set_at(location: Location) -> list[str]:
    """The line that set the cause."""
    c = location.culprit
    if c is None:
        return []
    place = f"  set at {short_path(c.file)}:{c.line} ({c.what})"
    return [place, f"           {c.source}"] if c.source else [place]


_SEARCHES = ("smaller_lr", "clipped")
"""Experiments that try several values. They fail if the loss or the weights diverge, even if finite."""
_OUTCOME = {"finite": "the step is finite", "nonfinite": "still not finite", "not_run": "not tried"}


def _experiments(incident: Incident) -> str:
    tried = incident.diagnosis.experiments
    if not tried:
        return ""
    width = max(len(e.changed) for e in tried)
    return "\n".join(
        [
            "experiments: the same step again with one thing changed; they prove the cause, not a fix",
            *(
                f"  {e.changed:<{width}}  -> {_outcome(e)}{f': {e.detail}' if e.detail else ''}"
                for e in tried
            ),
        ]
    )


def _outcome(tried: Experiment) -> str:
    if tried.outcome == "nonfinite" and tried.name in _SEARCHES:
        return "no value passed"
    return _OUTCOME.get(tried.outcome, tried.outcome)


def _advice(incident: Incident) -> str:
    found = advice(incident)
    lines = [("or" if first_fix(incident) is not None else "try") if found else ""]
    for i, fix in enumerate(found, 1):
        title = fix.title.removeprefix("or ")  # the heading says so
        lines += _wrapped(f"{title}  [{fix.status}]", f"  {i}. ")
        if fix.diff:
            lines += [f"       {line}".rstrip() for line in fix.diff.splitlines()]
        elif fix.before and fix.after:
            lines.append(f"       - {fix.before}")
            lines.append(f"       + {fix.after}")
        lines += _wrapped(fix.why, "     ")
    return "\n".join(lines) if found else ""


def _refuted(incident: Incident) -> str:
    """The refuted changes, so that nobody tries them again."""
    lines: list[str] = []
    for fix in refuted(incident):
        reason = proof_words(fix.proof, incident.event.step) if fix.proof is not None else ""
        lines += _wrapped(f"{fix.title}{f': {reason}' if reason else ''}", "  - ")
    return "\n".join(["tried, and does not help  [refuted]", *lines]) if lines else ""


def _wrapped(text: str, lead: str) -> list[str]:
    """Wrap a long sentence for a terminal, with an indent after its lead."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


_WIDTH = 100


def _action(incident: Incident) -> str:
    lines = [f"done: {incident.action.kind.replace('_', ' ')}"]
    if incident.action.detail:
        lines[0] += f"; {incident.action.detail}"
    if incident.path:
        lines.append(f"saved: {short_path(incident.path)}")
    if incident.diagnosis.cause in CAUSES:
        lines.append(f"more: stayfinite explain {incident.diagnosis.cause}")
    return "\n".join(lines)

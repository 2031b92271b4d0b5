"""Renders a check report as text and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .. import __version__
from ..report.html import templates
from .records import ALL_GROUPS, CheckReport, Finding

__all__ = ["describe", "page"]

_TITLES = {
    "forward": "forward, loss, gradients",
    "edges": "edge cases",
    "proof": "proof, by line",
}
_VERDICTS = {
    "ready": "ready: no problem was found",
    "look first": "look first: nothing is broken, something is unusual",
    "do not start": "do not start: this run would break or be worthless",
}


def describe(report: CheckReport, is_quiet: bool = False) -> Iterator[str]:
    """The report line by line; quiet: without what passed."""
    yield f"stayfinite check {report.target}"
    reasons = {s.group: s.reason for s in report.skipped}
    for group in ALL_GROUPS:
        findings = report.of_group(group)
        if not findings:
            continue
        if not is_quiet:
            yield ""
        yield _heading(report, group, findings)
        shown = [f for f in findings if f.is_problem or not is_quiet]
        width = max((len(_name(f)) for f in shown), default=0)
        for f in shown:
            yield from _rows(f, width, report.target)
        if group in reasons:
            yield f"  skip  the rest: {reasons[group]}"
    yield from _left_out(report)
    yield ""
    yield from _verdict(report)


def _left_out(report: CheckReport) -> Iterator[str]:
    """Groups that found nothing because they could not run, by reason."""
    by_reason: dict[str, list[str]] = {}
    for s in report.skipped:
        if not report.of_group(s.group):
            by_reason.setdefault(s.reason, []).append(_TITLES.get(s.group, s.group))
    if by_reason:
        yield ""
    for reason, names in by_reason.items():
        yield f"left out: {', '.join(names)}"
        yield f"  skip  {reason}"


def _heading(report: CheckReport, group: str, findings: tuple[Finding, ...]) -> str:
    seconds = report.seconds.get(group)
    took = f"  ({seconds:.1f} s)" if seconds is not None else ""
    return f"{_TITLES.get(group, group)}: {_counts(findings)}{took}"


def _counts(findings: tuple[Finding, ...]) -> str:
    parts = [(s, sum(f.status == s for f in findings)) for s in ("fail", "warn", "pass", "skip")]
    said = [f"{n} {s}" for s, n in parts if n]
    return ", ".join(said) or "no result"


def _name(f: Finding) -> str:
    """The check without its group, where it is in that group's table anyway."""
    return f.check.partition("/")[2] if f.check.startswith(f"{f.group}/") else f.check


def _rows(f: Finding, width: int, target: str = "") -> Iterator[str]:
    about = f"{f.subject}: {f.value}" if f.subject and f.value else f.subject or f.value
    yield f"  {f.status}  {_name(f):<{width}}  {about}".rstrip()
    if f.is_problem:
        yield f"  {'':<{width + 6}}  do: {f.action}"
        if f.why:
            yield f"  {'':<{width + 6}}  why: {f.why}"
        if f.data.get("saved"):
            how = f"--build {target}" if _is_build(target) else f"-- {target}"
            yield f"  {'':<{width + 6}}  run it: stayfinite replay {f.data['saved']} {how}"


def _is_build(target: str) -> bool:
    """`pkg.module:build`, and no script with arguments.

    >>> _is_build("train.py:build"), _is_build("train.py --name a:b")
    (True, False)
    """
    return ":" in target.split(" ")[0]


def _verdict(report: CheckReport) -> Iterator[str]:
    first = report.first_things()
    if first:
        yield "do first:" if len(first) > 1 else "do this:"
        for i, f in enumerate(first, 1):
            more = f" and {report.also(f)} more" if report.also(f) else ""
            about = f"{f.subject}{more}: " if f.subject else ""
            yield f"  {i}. {about}{f.action}"
            yield f"     ({f.status} {f.check}: {f.value})"
        yield f"more: stayfinite explain {first[0].check}"
        yield ""
    for note in report.notes:
        yield f"note: {note}"
    counts = [f"{report.count(s)} {s}" for s in ("fail", "warn", "pass")]
    yield f"verdict: {_said(report)}"
    yield f"{', '.join(counts)} in {report.duration_s:.1f} s"


def _said(report: CheckReport) -> str:
    if report.verdict == "look first" and not report.count("warn"):
        return "look first: no problem was found, but not everything could be checked"
    return _VERDICTS[report.verdict]


def page(report: CheckReport) -> str:
    """One HTML file that needs nothing else."""
    reasons = {s.group: s.reason for s in report.skipped}
    groups = [
        {
            "name": group,
            "title": _TITLES.get(group, group),
            "findings": report.of_group(group),
            "counts": _counts(report.of_group(group)),
            "reason": reasons.get(group),
            "seconds": report.seconds.get(group),
        }
        for group in ALL_GROUPS
        if report.of_group(group) or group in reasons
    ]
    template = templates().get_template("check.html.jinja")
    return template.render(
        report=report,
        groups=groups,
        verdict=_said(report),
        title=Path(report.target.split()[0]).name if report.target else "check",
        version=__version__,
    )

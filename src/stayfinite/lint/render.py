"""Findings for people and for programs: text, JSON, GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from ..codes import lookup
from .records import Finding, Report
from .sarif import as_sarif

__all__ = ["FORMATS", "as_github", "as_json", "as_text", "summary"]


def as_text(report: Report) -> str:
    """One block per finding: place, code, description, the line, and the replacement."""
    blocks = list(report.diffs)
    for f in report.findings:
        mark = "  [--fix]" if f.remedy else ""
        blocks.append(
            f"{f.path}:{f.line}:{f.column}: {f.code} {f.message}\n"
            f"    {f.source}\n"
            f"    try: {f.advice}{mark}\n"
        )
    return "".join(blocks)


def summary(report: Report) -> str:
    """The last line: number of findings, where, how much was read.

    >>> summary(Report(num_files=2, num_lines=10, duration_ms=400))
    'nothing found in 2 files, 10 lines (0.4 s)'
    """
    read = f"{report.num_files:,} file{'s' * (report.num_files != 1)}, {report.num_lines:,} lines ({report.duration_ms / 1000:.1f} s)"
    verb = "repairs shown" if report.diffs else "repaired"
    fixed = f"{report.num_fixed} {verb}; " if report.num_fixed else ""
    if not report.findings:
        return f"{fixed}nothing found in {read}"
    number = len(report.findings)
    files = len({f.path for f in report.findings})
    ways = sum(f.remedy is not None for f in report.findings)
    can = f", {ways} with a repair (--fix)" if ways else ""
    more = f"; more: stayfinite explain {report.findings[0].code}"
    return f"{fixed}{number} found in {files} of {read}{can}{more}"


def as_json(report: Report) -> str:
    """All findings and the totals, for programs."""
    data = {
        "version": 1,
        "findings": [_plain(f) for f in report.findings],
        "unreadable": [{"path": u.path, "reason": u.reason} for u in report.unreadable],
        "num_files": report.num_files,
        "num_lines": report.num_lines,
        "num_fixed": report.num_fixed,
        "diffs": list(report.diffs),
    }
    return json.dumps(data, indent=2) + "\n"


def _plain(f: Finding) -> dict[str, object]:
    return {
        "code": f.code,
        "definition": lookup(f.code).definition,
        "path": f.path,
        "line": f.line,
        "column": f.column,
        "end_line": f.end_line,
        "end_column": f.end_column,
        "message": f.message,
        "advice": f.advice,
        "source": f.source,
        "tier": "default" if f.is_default else "pedantic",
        "fix": f.remedy.title if f.remedy else None,
    }


def as_github(report: Report) -> str:
    """Workflow commands, which GitHub shows next to the changed lines."""
    return "".join(f"{line}\n" for line in _annotations(report))


def _annotations(report: Report) -> Iterator[str]:
    for f in report.findings:
        level = "warning" if f.is_default else "notice"
        place = (
            f"file={_property(f.path)},line={f.line},col={f.column},endLine={f.end_line},"
            f"endColumn={f.end_column},title={f.code}"
        )
        yield f"::{level} {place}::{_data(f'{f.message}. try: {f.advice}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: dict[str, Callable[[Report], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}

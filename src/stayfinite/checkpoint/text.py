"""Renders scan reports as plain text; the command adds color."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .records import (
    CheckpointReport,
    FileReport,
    RunTimeline,
    ScanReport,
    TensorFinding,
)
from .roles import ROLE_TITLES
from .tree import clean

__all__ = ["describe_scan", "human_bytes", "summary"]

_MAX_FINDINGS = 8
_MAX_LISTED = 6
_MAX_TENSORS = 20_000
_WORTH_A_SPEED = 100e6
_OWN = ("torch.", "__torch__.", "numpy.", "collections.", "builtins.")
"""Classes that most files have; the JSON report lists them too."""


def human_bytes(count: float) -> str:
    """A size for people.

    >>> human_bytes(1_620_000_000), human_bytes(532)
    ('1.62 GB', '532 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} byte{'' if count == 1 else 's'}"


def describe_scan(report: ScanReport, *, verbose: bool = False) -> Iterator[str]:
    """Render a whole report, with the timeline of each run last."""
    said: set[str] = set()
    for checkpoint in report.checkpoints:
        yield from _checkpoint(checkpoint, verbose, said)
    for problem in report.problems:
        yield f"{problem.severity:<10}  {problem.code}: {problem.message}"
    for timeline in report.timelines:
        yield ""
        yield from _timeline(timeline)
    yield ""
    yield summary(report)
    found = [f.code for c in report.checkpoints for f in (*c.findings, *_of_files(c))]
    if found:
        yield f"more: stayfinite explain {found[0]}"


def _of_files(checkpoint: CheckpointReport) -> Iterator[TensorFinding]:
    return (finding for file in checkpoint.files for finding in file.findings)


def summary(report: ScanReport) -> str:
    """One line: how many files with each verdict, and the speed."""
    if not report.checkpoints and report.num_unseen:
        return f"interrupted: none of {report.num_unseen:,} checkpoints was finished"
    if not report.checkpoints:
        return f"no checkpoint found ({len(report.skipped)} other files were passed over)"
    real = [c.verdict for c in report.checkpoints if c.kind != "data"]
    data = [c.verdict for c in report.checkpoints if c.kind == "data"]
    parts = [_counted(v, t) for v, t in ((real, "checkpoint"), (data, "data file")) if v]
    took = f"{human_bytes(report.scanned_bytes)} in {report.duration_s:.2f} s"
    if report.scanned_bytes >= _WORTH_A_SPEED:
        took += f", {human_bytes(report.scanned_bytes / max(report.duration_s, 1e-9))}/s"
    unseen = f"; interrupted, {report.num_unseen:,} not looked at" if report.num_unseen else ""
    return f"{'; '.join(parts)}{unseen} ({took})"


def _counted(verdicts: list[str], title: str) -> str:
    """
    >>> _counted(["healthy", "corrupt", "healthy"], "checkpoint")
    '3 checkpoints: 2 healthy, 1 corrupt'
    """
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    return f"{len(verdicts):,} {title}{'' if len(verdicts) == 1 else 's'}: {counts}"


def _checkpoint(checkpoint: CheckpointReport, verbose: bool, said: set[str]) -> Iterator[str]:
    size = sum(f.size_bytes for f in checkpoint.files)
    tensors = sum(len(f.tensors) for f in checkpoint.files)
    kind = f"{checkpoint.kind} folder"
    if checkpoint.kind in ("file", "data") and checkpoint.files:
        kind = checkpoint.files[0].format + (", data" if checkpoint.kind == "data" else "")
    step = f", step {checkpoint.step:,}" if checkpoint.step is not None else ""
    link = f" → {clean(checkpoint.link_to, 1000)}" if checkpoint.link_to else ""
    facts = f"{kind}, {human_bytes(size)}, {tensors:,} tensor{'' if tensors == 1 else 's'}{step}"
    yield f"{checkpoint.verdict:<10}  {clean(checkpoint.path, 4096)}{link}  ({facts})"
    for finding in checkpoint.findings:
        yield from _finding(finding, said)
    for file in checkpoint.files:
        yield from _file(file, checkpoint, verbose, said)


def _file(
    file: FileReport, checkpoint: CheckpointReport, verbose: bool, said: set[str]
) -> Iterator[str]:
    if len(checkpoint.files) > 1 and (file.findings or verbose):
        name = clean(os.path.relpath(file.path, checkpoint.path), 1000)
        yield f"    {file.verdict} in {name} ({file.format})"
    shown = file.findings if verbose else file.findings[:_MAX_FINDINGS]
    for finding in shown:
        yield from _finding(finding, said)
    hidden = len(file.findings) - len(shown)
    if hidden:
        yield f"      … and {hidden:,} more findings (--verbose shows all)"
    foreign = [p for p in file.placeholders if verbose or not p.startswith(_OWN)]
    if foreign:
        names = ", ".join(foreign[: None if verbose else _MAX_LISTED])
        more = len(foreign) - _MAX_LISTED
        tail = f" and {more:,} more" if more > 0 and not verbose else ""
        yield f"      classes named in the file, not imported: {names}{tail}"
    if verbose:
        for note in file.notes:
            yield f"      note: {note}"
        rest = len(file.tensors) - _MAX_TENSORS
        for tensor in file.tensors[:_MAX_TENSORS]:
            s = tensor.stats
            unknown = "range not measured" if s.num_elements and s.is_finite else "no values"
            span = f"{s.min:.4g} … {s.max:.4g}" if s.min is not None else unknown
            alias = f"  = {', '.join(tensor.aliases)}" if tensor.aliases else ""
            role = ROLE_TITLES.get(tensor.role, tensor.role)
            yield f"      {tensor.name}  {s.dtype} {list(s.shape)}  {span}  [{role}]{alias}"
        if rest > 0:
            yield f"      … and {rest:,} more tensors (--json lists all)"


def _finding(finding: TensorFinding, said: set[str]) -> Iterator[str]:
    """A finding with its advice; repeated advice is omitted."""
    about = ""
    if finding.tensor is not None and finding.stats is not None:
        role = ROLE_TITLES.get(finding.role or "", finding.role or "")
        about = f"{finding.tensor} [{role}]: "
    is_repeated = finding.code == "lr_mismatch" and finding.message in said
    yield f"      {finding.code}: {'the same as above' if is_repeated else about + finding.message}"
    if finding.action and finding.action not in said:
        yield f"          try: {finding.action}"
    said.update((finding.message, finding.action or ""))


def _rate(values: tuple[float, ...]) -> str:
    distinct = list(dict.fromkeys(f"{v:.3g}" for v in values))
    return "–" if not distinct else "/".join(distinct[:3]) + ("…" if len(distinct) > 3 else "")


def _timeline(timeline: RunTimeline) -> Iterator[str]:
    yield f"timeline of {clean(timeline.path, 4096)}"
    rows = [
        ("step", "verdict", "weight norm", "largest change", "lr", "scheduler lr", "checkpoint")
    ]
    for e in timeline.entries:
        when = (
            f"{e.step:,}"
            if e.step is not None
            else f"epoch {e.epoch}"
            if e.epoch is not None
            else "?"
        )
        change = f"{e.change:.2%} {_short(e.changed_tensor)}" if e.change else "–"
        if e.change == 0:
            change = "none"
        norm = f"{e.weight_norm:.5g}" if e.weight_norm is not None else "–"
        saved = (_rate(e.rates.optimizer), _rate(e.rates.scheduler))
        rows.append((when, e.verdict, norm, change, *saved, clean(os.path.basename(e.path), 300)))
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [row[0].rjust(widths[0]), *(c.ljust(w) for c, w in zip(row[1:-1], widths[1:]))]
        yield "  " + "  ".join(cells) + "  " + row[-1]
    if timeline.broke_at is not None:
        yield f"  broke at:  {clean(timeline.broke_at, 4096)}"
        if timeline.first_broken:
            names = ", ".join(timeline.first_broken[:_MAX_LISTED])
            more = timeline.num_first_broken - _MAX_LISTED
            tail = f" and {more:,} more" if more > 0 else ""
            yield f"  first broken there (fewest bad values first): {names}{tail}"
    nothing = "none: no checkpoint of this run can be resumed from"
    yield f"  last good: {clean(timeline.last_good or nothing, 4096)}"


def _short(name: str | None) -> str:
    return "" if name is None else name if len(name) <= 32 else "…" + name[-31:]

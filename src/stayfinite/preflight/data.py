"""The data group: every sample that the time allows, and what is wrong with which of them."""

from __future__ import annotations

from pathlib import Path

from ..runtime.rng import RngState
from .data_checks import checks_of
from .data_file import scan_file
from .data_labels import label_checks
from .data_loader import loader_checks
from .data_source import OnSamples, Scan, scan_loader
from .probes import Checks, Probe, Subject
from .records import Finding, passed, skipped

__all__ = ["check_file", "data"]


def data(subject: Subject) -> Checks:
    """The samples behind the training's loaders."""
    if not subject.loaders:
        return [skipped("data", "data/coverage", "the training takes its batches from no loader")]
    found: list[Finding] = []
    classes = None
    if subject.batches:
        # What the model gives tells how many classes there are.
        seen = yield Probe(subject.batches[0], "outputs", watch=True)
        classes = seen
    for number, loader in enumerate(subject.loaders):
        before = RngState.now()
        try:
            scan = scan_loader(loader, subject.batches, subject.data_samples, subject.on_samples)
        finally:
            before.restore()
        found.append(coverage(scan, number if len(subject.loaders) > 1 else None))
        found += checks_of(scan, subject)
        found += label_checks(scan, subject, classes)
        found += loader_checks(scan, loader, subject)
    return found


def check_file(path: Path, num_samples: int | None, on_samples: OnSamples) -> list[Finding]:
    """The rows of a data file."""
    scan = scan_file(path, num_samples, on_samples)
    return [coverage(scan, None), *checks_of(scan, None), *label_checks(scan, None, None)]


def coverage(scan: Scan, number: int | None) -> Finding:
    """How much of the data was looked at."""
    unit = "samples" if scan.by_sample else "rows of the stream"
    total = scan.num_total
    if total is None:
        said = f"{scan.num_seen:,} {unit}; how many there are is not known"
    elif total > scan.num_seen + scan.num_errors:
        said = f"{scan.num_seen:,} of {total:,} {unit}, evenly spread"
        said = said if scan.by_sample else f"the first {scan.num_seen:,} of about {total:,} {unit}"
    else:
        said = f"all {scan.num_seen:,} {unit}"
    label = f"loader {number}" if number is not None else ""
    figures = {"seen": scan.num_seen, "total": total}
    return passed("data", "data/coverage", said, subject=label, data=figures)

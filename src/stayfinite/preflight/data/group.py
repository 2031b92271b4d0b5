"""The data group: checks as many samples as time allows."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from ...runtime.batches import named_tensors
from ...runtime.rng import RngState
from ...runtime.rows import num_rows
from ..layers import ask
from ..probes import Checks, Probe, Seen, Subject
from ..records import Finding, passed, skipped
from .checks import checks_of
from .file import scan_file
from .labels import label_checks
from .loader import loader_checks
from .source import OnSamples, Scan, scan_loader

__all__ = ["check_file", "data"]


def data(subject: Subject) -> Checks:
    """The samples behind the training's loaders."""
    if not subject.loaders:
        return [skipped("data", "data/coverage", "the training takes its batches from no loader")]
    found: list[Finding] = []
    classes = None
    if subject.batches:
        # The model's output shows how many classes there are.
        seen = yield Probe(subject.batches[0], "outputs", watch=True)
        classes = seen
    for number, loader in enumerate(subject.loaders):
        before = RngState.now()
        try:
            scan = scan_loader(loader, subject.batches, subject.data_samples, subject.on_samples)
        finally:
            before.restore()
        found.append(coverage(scan, number if len(subject.loaders) > 1 else None))
        found += yield from _executed(subject, loader, scan, checks_of(scan, subject))
        found += label_checks(scan, subject, classes)
        found += loader_checks(scan, loader, subject)
    return found


def _executed(
    subject: Subject, loader: Any, scan: Scan, found: list[Finding]
) -> Generator[Probe, Seen, list[Finding]]:
    """A value beyond float16, a sample with nothing in it: a batch with it says whether it does harm.

    It may be scaled first; images without an object are ordinary.
    """
    judged = []
    for f in found:
        if f.check == "data/range" and f.status == "fail" and "sample" in f.data:
            batch, why = _batch_with(subject, loader, scan, f.data["sample"]), "it is scaled before"
        elif f.check == "data/empty":
            batch, why = _batch_with(subject, loader, scan, f.data["sample"]), "that is dealt with"
            batch = batch if batch is not None else _hollow(subject, loader)
        else:
            batch = None
        if batch is not None:
            seen = yield from ask(subject, Probe(batch, "a batch with such a sample"))
            if seen.error is None and seen.is_finite:
                said = f"{f.value}, but a batch with it is finite: {why}"
                f = replace(f, status="pass", value=said, action="")
            else:
                f = replace(f, status="fail")
        judged.append(f)
    return judged


def _hollow(subject: Subject, loader: Any) -> Any:
    """A real batch that holds a tensor without an element; None where none is at hand."""
    ready = loader if isinstance(loader, (list, tuple)) else subject.batches
    return next((b for b in ready if any(not t.numel() for _, t in named_tensors(b))), None)


def _batch_with(subject: Subject, loader: Any, scan: Scan, index: int) -> Any:
    """A batch that begins with this sample; None where the loader cannot make one."""
    total = num_rows(subject.batches[0]) if subject.batches else None
    if len(subject.loaders) > 1 or not scan.by_sample or not isinstance(loader, DataLoader):
        return None
    if total is None or total > len(loader.dataset):  # type: ignore[arg-type]
        return None
    others = [i for i in range(total) if i != index][: total - 1]
    before = RngState.now()
    try:
        return loader.collate_fn([loader.dataset[i] for i in (index, *others)])
    except Exception:
        return None
    finally:
        before.restore()


def check_file(path: Path, num_samples: int | None, on_samples: OnSamples) -> list[Finding]:
    """The rows of a data file."""
    scan = scan_file(path, num_samples, on_samples)
    return [coverage(scan, None), *checks_of(scan, None), *label_checks(scan, None, None)]


def coverage(scan: Scan, number: int | None) -> Finding:
    """The finding that says how much of the data was read."""
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

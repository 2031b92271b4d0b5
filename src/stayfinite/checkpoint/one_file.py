"""Scans one file and gives its verdict."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from ..errors import UsageError
from .contents import examine, step_and_epoch
from .files import MappedFile, Region
from .judge import finding
from .limits import DEFAULT_LIMITS, FileFault, Limits
from .measure import Asked, Probe
from .places import Place, open_source, place
from .policy import NONSENSE
from .pool import touching
from .rates import find_rates, merge_rates
from .readers import Contents, find_reader
from .readers import plain as plain_pickle
from .records import VERDICTS, FileReport, LearningRates, TensorFinding, worst
from .remote import RemotePath
from .roles import file_hint, is_data_file
from .tree import clean

__all__ = ["open_contents", "report_contents", "scan_file", "scan_object"]

_ACTIONS = {
    "hostile_pickle": "do not load it with pickle or torch.load(weights_only=False); ask for safetensors instead",
    "truncated": "the write was cut short or the copy is incomplete: take the checkpoint before it",
    "zip_bomb": "do not unpack this file",
    "unsafe_name": "do not unpack this file",
    "unknown_call": "load it only if you know where that function comes from",
    "checksum_mismatch": "it was changed after it was written, or written with crc32 turned off",
}
_MAX_DATA_TENSORS = 1000
_TEXT_PICKLE = frozenset(b"(cdlIFLSVNp]}G")


def scan_file(
    path: str | os.PathLike[str] | RemotePath,
    *,
    limits: Limits = DEFAULT_LIMITS,
    probe: Probe | None = None,
    ranges: bool = False,
    verify: bool = False,
) -> FileReport:
    """Check whether one checkpoint or data file is sound. Nothing in it is executed.

    `ranges`: also measure the smallest and largest value of large healthy tensors (`stats.min`, `stats.max`).

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"fc.weight": torch.full((2, 2), float("nan"))}, f"{folder}/bad.pt")
    ...     report = scan_file(f"{folder}/bad.pt")
    >>> report.verdict, report.findings[0].tensor, report.findings[0].stats.first_bad
    ('corrupt', 'fc.weight', (0, 0))
    """
    where: Place = place(os.fspath(path)) if not isinstance(path, RemotePath) else path
    if not (where.exists() or os.path.lexists(str(where))):
        raise UsageError(f"no such file: {where}")
    if where.is_dir():
        raise UsageError(f"{where} is a folder: use `scan` for it")
    begin = time.perf_counter()
    probe = probe or Probe(asked=Asked(has_ranges=ranges))
    try:
        with open_source(where) as file:
            return scan_source(file, str(where), limits.begin(), probe, verify)
    except FileFault as e:
        found = finding(e.code, clean(str(e), 400), action=_ACTIONS.get(e.code))
        return _failed(where, found, begin, e.format)
    except OSError as e:
        return _failed(where, finding("unreadable", f"cannot be opened: {e.strerror or e}"), begin)
    except (MemoryError, RecursionError) as e:
        message = f"reading it takes too much memory ({type(e).__name__})"
        return _failed(where, finding("limit_exceeded", message), begin)


def scan_source(
    file: MappedFile, name: str, limits: Limits, probe: Probe, verify: bool
) -> FileReport:
    """The report on an open file."""
    begin = time.perf_counter()
    with touching(file):
        contents = open_contents(file, limits)
    if verify and contents.verify is not None:
        bad = contents.verify()
        contents.findings += [("checksum_mismatch", f"{clean(n)}: wrong checksum") for n in bad]
    return report_contents(contents, name, limits, probe, begin, file.size)


def scan_object(value: Any, name: str = "state", *, limits: Limits = DEFAULT_LIMITS) -> FileReport:
    """The same for a state in memory before it is written, for the save gate.

    >>> import torch
    >>> scan_object({"model": {"w": torch.ones(2)}, "loss": 0.5}).verdict
    'healthy'
    """
    begin = time.perf_counter()
    contents = Contents("memory", roots=[("", value)])
    return report_contents(contents, name, limits.begin(), Probe(), begin, 0)


def open_contents(file: MappedFile, limits: Limits) -> Contents:
    """Read the file with the reader for its first bytes."""
    head = Region.of(file).read(0, 64)
    if not head:
        raise FileFault("truncated", "the file is empty")
    reader = find_reader(head)
    if reader is not None:
        try:
            return reader.read(file, limits)
        except FileFault as e:
            e.format = reader.name
            raise
    if head.startswith(b"version https://git-lfs"):
        raise FileFault(
            "unreadable", "a Git LFS pointer: the file itself was not fetched (`git lfs pull`)"
        )
    if not any(head):
        raise FileFault(
            "truncated", "the file begins with zeros: it was reserved but never written"
        )
    if head[0] in _TEXT_PICKLE:
        contents = plain_pickle.read(file, limits)
        if contents.roots[0][1] is not None or any(map(_is_threat, contents.findings)):
            return contents
    raise FileFault("unreadable", f"not a known format; it begins with {head[:8]!r}")


def _is_threat(found: tuple[str, str]) -> bool:
    """Whether a hostile name exists: text that begins like a pickle contains nonsense names."""
    return found[0] == "hostile_pickle" and not found[1].endswith(NONSENSE)


def report_contents(
    contents: Contents, path: str, limits: Limits, probe: Probe, begin: float, size: int
) -> FileReport:
    """The report on the contents of a file."""
    before = probe.scanned_bytes
    hint = contents.hint or file_hint(path.rpartition("/")[2].partition(".")[0])
    examined = examine(contents, hint, limits, probe)
    limits.part("its numbers")
    findings = [_reader_finding(code, message) for code, message in contents.findings]
    findings += examined.findings
    tensors = tuple(examined.tensors)
    if contents.format != "memory" and is_data_file([t.name for t in tensors[:_MAX_DATA_TENSORS]]):
        tensors = tuple(replace(t, role="data") for t in tensors)
        findings = [replace(f, role="data") if f.role == "weights" else f for f in findings]
    step, epoch = step_and_epoch(contents)
    rest = len(findings) - limits.max_findings
    if rest > 0:
        findings = sorted(findings, key=_severity)[: limits.max_findings]
        contents.notes.append(f"{rest:,} more findings are not listed")
    return FileReport(
        path=path,
        format=contents.format,
        verdict=worst([f.severity for f in findings] or ["healthy"]),
        size_bytes=size,
        scanned_bytes=probe.scanned_bytes - before,
        tensors=tensors,
        findings=tuple(findings),
        placeholders=tuple(sorted(clean(p) for p in contents.placeholders)),
        step=step,
        epoch=epoch,
        rates=_rates(contents, limits),
        notes=tuple(clean(n, 300) for n in [*contents.notes, *examined.notes]),
        duration_s=time.perf_counter() - begin,
    )


def _severity(found: TensorFinding) -> int:
    """Sort the worst first, then in file order."""
    return -VERDICTS.index(found.severity)


def _rates(contents: Contents, limits: Limits) -> LearningRates:
    parts = []
    for label, root in contents.roots:
        try:
            parts.append(find_rates(root, limits, label))
        except FileFault:
            continue  # a rate in a broken tensor is a finding already
    return merge_rates(parts)


def _reader_finding(code: str, message: str) -> TensorFinding:
    return finding(code, clean(message, 400), action=_ACTIONS.get(code))


def _failed(path: Place, found: TensorFinding, begin: float, format: str = "unknown") -> FileReport:
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    return FileReport(
        path=str(path),
        format=format,
        verdict=found.severity,
        size_bytes=size,
        findings=(found,),
        duration_s=time.perf_counter() - begin,
    )

"""Scans many files: folders, parallel files, and checkpoints judged as a whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import partial

from ..errors import UsageError
from .discover import Unit, discover, expand, step_in_name
from .folders import check_index, dcp_files, read_trainer_step, scan_dcp_file
from .judge import finding
from .limits import DEFAULT_LIMITS, Limits
from .measure import Asked, Probe
from .one_file import scan_file
from .places import Place
from .rates import compare, merge_rates
from .records import CheckpointReport, FileReport, ScanReport, TensorFinding, worst
from .running import Outcomes, Progress, Task, run_local
from .timeline import build_timelines
from .tree import clean

__all__ = ["Progress", "Task", "plan_tasks", "scan"]


def scan(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    lr: float | None = None,
    lr_source: str = "--lr",
    jobs: int | None = None,
    ranges: bool = False,
    full: bool = False,
    verify: bool = False,
    timeline: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    keep_partial: bool = False,
    ray: str | None = None,
) -> ScanReport:
    """Scan checkpoints and data files: files, folders, globs, and addresses that fsspec supports.

    `lr` is the learning rate of the config; a checkpoint that would resume with another one gets a finding. `ranges`: also measure
    the smallest and largest value of large healthy tensors. `full`: also count zeros and subnormals of every tensor. `verify`:
    compare the checksums of archives, which takes longer. `keep_partial`: an interrupt ends the scan with the results so far.
    `ray`: the address of a Ray cluster that does the work ("local": one on this machine).

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step, value in ((100, 1.0), (200, float("nan"))):
    ...         state = {"step": step, "model": {"w": torch.full((3,), value)}}
    ...         torch.save(state, f"{folder}/step_{step}.pt")
    ...     report = scan(folder)
    >>> report.verdict, report.last_good.endswith("step_100.pt"), report.timelines[0].first_broken
    ('corrupt', True, ('model.w',))
    """
    begin = time.perf_counter()
    wanted = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not wanted:
        raise UsageError("nothing to scan: give at least one file, folder or glob")
    jobs = _check_jobs(jobs)
    found = discover(expand(wanted), limits)
    units = found.units
    progress = progress or Progress()
    tasks, notes = plan_tasks(units, limits, verify)
    outcomes = _run(tasks, jobs, Asked(ranges or full, full), progress, keep_partial, ray)
    checkpoints = [
        _checkpoint(unit, outcomes.reports.get(i, []), notes.get(i, []), lr, lr_source, limits)
        for i, unit in enumerate(units)
        if i not in outcomes.unseen
    ]
    progress.phase = "comparing"
    is_whole = not outcomes.unseen
    timelines = build_timelines(checkpoints, limits) if timeline and is_whole else []
    return ScanReport(
        checkpoints=tuple(checkpoints),
        timelines=tuple(timelines),
        skipped=tuple(str(p) for p in found.skipped),
        problems=tuple(finding(code, clean(text, 400)) for code, text in found.problems),
        num_unseen=len(outcomes.unseen),
        duration_s=time.perf_counter() - begin,
        scanned_bytes=sum(f.scanned_bytes for c in checkpoints for f in c.files),
    )


def _run(
    tasks: list[Task],
    jobs: int,
    asked: Asked,
    progress: Progress,
    keep_partial: bool,
    ray: str | None,
) -> Outcomes:
    if ray is None:
        return run_local(tasks, jobs, asked, progress, keep_partial)
    from .fleet import run_on_ray

    return run_on_ray(tasks, ray, asked, progress, keep_partial)


def _check_jobs(jobs: int | None) -> int:
    if jobs is None:
        return min(4, os.cpu_count() or 1)
    if jobs < 1:
        raise UsageError(f"`jobs` must be at least 1, got {jobs}")
    return jobs


def plan_tasks(
    units: list[Unit], limits: Limits, verify: bool
) -> tuple[list[Task], dict[int, list[FileReport]]]:
    """The tasks, and reports that exist already (of a distributed checkpoint's index)."""
    tasks: list[Task] = []
    ready: dict[int, list[FileReport]] = {}
    for i, unit in enumerate(units):
        folders = [unit.path] if unit.kind == "dcp" else [f for f in unit.files if f.is_dir()]
        for folder in folders:
            report, items = dcp_files(folder, limits)
            ready.setdefault(i, []).append(report)
            for path, pieces in items.items():
                tasks.append(Task(i, path, partial(scan_dcp_file, path, pieces, limits)))
        for file in unit.files:
            if file.is_dir() or file.name.endswith(".index.json") or file.suffix == ".distcp":
                continue
            tasks.append(Task(i, file, partial(_scan_plain, file, limits, verify)))
    return tasks, ready


def _scan_plain(path: Place, limits: Limits, verify: bool, probe: Probe) -> FileReport:
    return scan_file(path, limits=limits, probe=probe, verify=verify)


def _checkpoint(
    unit: Unit,
    files: list[FileReport],
    ready: list[FileReport],
    lr: float | None,
    lr_source: str,
    limits: Limits,
) -> CheckpointReport:
    reports = [*ready, *files]
    findings: list[TensorFinding] = check_index(unit, reports, limits)
    rates = merge_rates([f.rates for f in reports])
    if lr is not None:
        mismatch = compare(rates, lr, lr_source)
        findings += [mismatch] if mismatch else []
    step, epoch = _step(unit, reports, limits)
    verdicts = [f.verdict for f in reports] + [f.severity for f in findings]
    if not reports:
        findings.append(
            finding("missing_file", "the folder names a checkpoint but holds no file of it")
        )
        verdicts.append("unreadable")
    return CheckpointReport(
        path=str(unit.path),
        kind=_kind(unit, reports),
        verdict=worst(verdicts),
        files=tuple(reports),
        findings=tuple(findings),
        step=step,
        epoch=epoch,
        rates=rates,
        modified=unit.path.stat().st_mtime if unit.path.exists() else 0.0,
        link_to=os.readlink(str(unit.path)) if unit.path.is_symlink() else None,
    )


def _kind(unit: Unit, reports: list[FileReport]) -> str:
    """A cache of embeddings or labels is not a state to resume from."""
    roles = {t.role for f in reports for t in f.tensors}
    return "data" if unit.kind == "file" and roles == {"data"} else unit.kind


def _step(unit: Unit, reports: list[FileReport], limits: Limits) -> tuple[int | None, int | None]:
    """The step from the trainer's record, else from the files, else from the name."""
    steps = [f.step for f in reports if f.step is not None]
    epochs = [f.epoch for f in reports if f.epoch is not None]
    recorded = read_trainer_step(unit.path, limits)
    named_step, named_epoch = step_in_name(unit.path)
    step = recorded if recorded is not None else max(steps, default=None)
    epoch = max(epochs, default=named_epoch)
    if step is None and (epochs == [] or named_epoch is None):
        step = named_step
    return step, epoch

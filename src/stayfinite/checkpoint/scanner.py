"""Many files at once: folders, several files side by side, checkpoints judged as a whole."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import StayfiniteError, UsageError
from .discover import Unit, discover, expand, step_in_name
from .folders import check_index, dcp_files, read_trainer_step, scan_dcp_file
from .judge import finding
from .limits import DEFAULT_LIMITS, Limits
from .measure import Probe
from .one_file import scan_file
from .rates import compare, merge_rates
from .records import CheckpointReport, FileReport, ScanReport, TensorFinding, worst
from .timeline import build_timelines
from .tree import clean

__all__ = ["Progress", "Task", "plan_tasks", "scan"]


class ScanStoppedError(StayfiniteError):
    """The scan was interrupted."""


@dataclass
class Progress:
    """How far a scan is; read it from another thread."""

    total_bytes: int = 0
    done_bytes: int = 0
    num_files: int = 0
    done_files: int = 0
    phase: str = "scanning"


@dataclass(frozen=True)
class Task:
    """One file to look at."""

    unit: int
    path: Path
    run: Callable[[Probe], FileReport]


def scan(
    paths: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    lr: float | None = None,
    lr_source: str = "--lr",
    jobs: int | None = None,
    full: bool = False,
    verify: bool = False,
    timeline: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> ScanReport:
    """Look at checkpoints and data files: files, folders and globs.

    `lr` is the learning rate that the config wants; a checkpoint that would resume with another
    one gets a finding. `full` counts zeros and subnormals of every tensor; `verify` compares the
    checksums of archives, which takes longer.

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
    results = _run_all(tasks, jobs, full, progress)
    checkpoints = [
        _checkpoint(unit, results.get(i, []), notes.get(i, []), lr, lr_source, limits)
        for i, unit in enumerate(units)
    ]
    progress.phase = "comparing"
    timelines = build_timelines(checkpoints, limits) if timeline else []
    return ScanReport(
        checkpoints=tuple(checkpoints),
        timelines=tuple(timelines),
        skipped=tuple(str(p) for p in found.skipped),
        problems=tuple(finding(code, clean(text, 400)) for code, text in found.problems),
        duration_s=time.perf_counter() - begin,
        scanned_bytes=sum(f.scanned_bytes for c in checkpoints for f in c.files),
    )


def _check_jobs(jobs: int | None) -> int:
    if jobs is None:
        return min(4, os.cpu_count() or 1)
    if jobs < 1:
        raise UsageError(f"`jobs` must be at least 1, got {jobs}")
    return jobs


def plan_tasks(
    units: list[Unit], limits: Limits, verify: bool
) -> tuple[list[Task], dict[int, list[FileReport]]]:
    """What to look at, and reports that are there already (a distributed checkpoint's index)."""
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


def _scan_plain(path: Path, limits: Limits, verify: bool, probe: Probe) -> FileReport:
    return scan_file(path, limits=limits, probe=probe, verify=verify)


def _run_all(
    tasks: list[Task], jobs: int, full: bool, progress: Progress
) -> dict[int, list[FileReport]]:
    """All tasks, several at a time; an interrupt stops the workers at their next block."""
    stop = threading.Event()
    lock = threading.Lock()
    progress.num_files = len(tasks)
    progress.total_bytes = sum(_size(t.path) for t in tasks)

    def run(task: Task) -> FileReport:
        seen = 0

        def on_bytes(count: int) -> None:
            nonlocal seen
            with lock:
                seen += count
                progress.done_bytes += count

        report = _guarded(task, Probe(on_bytes=on_bytes, check=check, is_full=full))
        with lock:
            progress.done_files += 1
            progress.done_bytes += max(0, _size(task.path) - seen)
        return report

    def check() -> None:
        if stop.is_set():
            raise ScanStoppedError("the scan was interrupted")

    results: dict[int, list[FileReport]] = {}
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="stayfinite-scan") as pool:
        futures: list[tuple[Task, Future[FileReport]]] = [(t, pool.submit(run, t)) for t in tasks]
        pending = {f for _, f in futures}
        try:
            while pending:
                _, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        for task, future in futures:
            results.setdefault(task.unit, []).append(future.result())
    return results


def _guarded(task: Task, probe: Probe) -> FileReport:
    """A fault of the scanner in one file must not cost the report on the others."""
    try:
        return task.run(probe)
    except ScanStoppedError:
        raise
    except Exception as e:
        found = finding("internal_error", f"{type(e).__name__}: {e!s:.200}")
        return FileReport(
            path=str(task.path),
            format="unknown",
            verdict=found.severity,
            size_bytes=_size(task.path),
            findings=(found,),
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
        link_to=os.readlink(unit.path) if unit.path.is_symlink() else None,
    )


def _kind(unit: Unit, reports: list[FileReport]) -> str:
    """A cache of embeddings or labels is a file, but nothing that a training resumes from."""
    roles = {t.role for f in reports for t in f.tensors}
    return "data" if unit.kind == "file" and roles == {"data"} else unit.kind


def _step(unit: Unit, reports: list[FileReport], limits: Limits) -> tuple[int | None, int | None]:
    """From the trainer's own record, else from the files, else from the name."""
    steps = [f.step for f in reports if f.step is not None]
    epochs = [f.epoch for f in reports if f.epoch is not None]
    recorded = read_trainer_step(unit.path, limits)
    named_step, named_epoch = step_in_name(unit.path)
    step = recorded if recorded is not None else max(steps, default=None)
    epoch = max(epochs, default=named_epoch)
    if step is None and (epochs == [] or named_epoch is None):
        step = named_step
    return step, epoch

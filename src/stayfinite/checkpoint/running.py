"""Scans files in parallel with progress, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from ..errors import StayfiniteError
from .judge import finding
from .measure import Asked, Probe
from .places import Place
from .records import FileReport

__all__ = ["Outcomes", "Progress", "ScanStoppedError", "Task", "guarded", "run_local", "size_of"]


class ScanStoppedError(StayfiniteError):
    """Raised if the scan was interrupted."""


@dataclass
class Progress:
    """The progress of a scan; may be read from another thread."""

    total_bytes: int = 0
    done_bytes: int = 0
    num_files: int = 0
    done_files: int = 0
    phase: str = "scanning"


@dataclass(frozen=True)
class Task:
    """One file to look at."""

    unit: int
    path: Place
    run: Callable[[Probe], FileReport]


@dataclass
class Outcomes:
    """The reports of each unit's files, as far as there are any."""

    reports: dict[int, list[FileReport]] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    """Units with a file that was not scanned before the interrupt."""

    def add(self, task: Task, report: FileReport | None) -> None:
        if report is None:
            self.unseen.add(task.unit)
        else:
            self.reports.setdefault(task.unit, []).append(report)


def run_local(
    tasks: list[Task], jobs: int, asked: Asked, progress: Progress, keep_partial: bool
) -> Outcomes:
    """Run all tasks in parallel; an interrupt stops the workers at their next block.

    With `keep_partial`, finished results are returned instead of being lost.
    """
    stop = threading.Event()
    lock = threading.Lock()
    progress.num_files = len(tasks)
    progress.total_bytes = sum(size_of(t.path) for t in tasks)

    def run(task: Task) -> FileReport:
        seen = 0

        def on_bytes(count: int) -> None:
            nonlocal seen
            with lock:
                seen += count
                progress.done_bytes += count

        report = guarded(task, Probe(on_bytes=on_bytes, check=check, asked=asked))
        with lock:
            progress.done_files += 1
            progress.done_bytes += max(0, size_of(task.path) - seen)
        return report

    def check() -> None:
        if stop.is_set():
            raise ScanStoppedError("the scan was interrupted")

    outcomes = Outcomes()
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="stayfinite-scan") as pool:
        futures: list[Future[FileReport]] = []
        try:
            for task in tasks:  # the first are at work while the last are handed out
                futures.append(pool.submit(run, task))
            pending = set(futures)
            while pending:
                _, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
        except BaseException as e:
            stop.set()
            pool.shutdown(cancel_futures=True)
            if not (keep_partial and isinstance(e, KeyboardInterrupt)):
                raise
        for task in tasks[len(futures) :]:
            outcomes.add(task, None)
        for task, future in zip(tasks, futures):
            is_known = not future.cancelled() and not isinstance(
                future.exception(), ScanStoppedError
            )
            outcomes.add(task, future.result() if is_known else None)
    return outcomes


def guarded(task: Task, probe: Probe) -> FileReport:
    """An error of the scanner in one file must not prevent the report on the others."""
    try:
        return task.run(probe)
    except ScanStoppedError:
        raise
    except Exception as e:
        return failed_report(task, f"{type(e).__name__}: {e!s:.200}")


def failed_report(task: Task, message: str) -> FileReport:
    found = finding("internal_error", message)
    return FileReport(
        path=str(task.path),
        format="unknown",
        verdict=found.severity,
        size_bytes=size_of(task.path),
        findings=(found,),
    )


def size_of(path: Place) -> int:
    try:
        return int(path.stat().st_size)
    except OSError:
        return 0

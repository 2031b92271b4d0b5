"""Runs the script several times in parallel processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .answer import RESULT

__all__ = ["Job", "Pool", "last_words"]

_CHILD = "import sys; from stayfinite.ladder.child import main; sys.exit(main(sys.argv[1]))"
_MAX_WORDS = 300

PROGRESS = "progress.json"
_POLL_S = 0.05
_GRACE_S = 5.0


@dataclass(eq=False)
class Job:
    """One process: its task and its result."""

    spec: dict[str, Any]
    env: Mapping[str, str]
    folder: Path
    label: str = ""
    answer: dict[str, Any] | None = None
    """The result; None while it runs, or if there is none."""
    code: int | None = None
    is_late: bool = False
    duration_s: float = 0.0
    progress: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    started: float


class Pool:
    """Runs up to `num` jobs at a time; no job outlives it."""

    def __init__(self, num: int, timeout: float) -> None:
        self._num = num
        self._timeout = timeout
        self._running: list[_Running] = []

    def run(self, jobs: Sequence[Job], on_news: Callable[[Job, bool], None] | None = None) -> None:
        """Run all jobs; `on_news` is called repeatedly for each, the last time when it is over."""
        waiting = list(jobs)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._num:
                    self._start(waiting.pop(0))
                time.sleep(_POLL_S)
                for running in list(self._running):
                    is_over = self._look(running)
                    if on_news is not None:
                        on_news(running.job, is_over)
                    if is_over:
                        self._running.remove(running)
        finally:
            for running in self._running:
                _end(running.process)
            self._running.clear()

    def _start(self, job: Job) -> None:
        for name in ("tmp", "files"):
            (job.folder / name).mkdir(parents=True, exist_ok=True)
        spec = job.folder / "spec.json"
        spec.write_text(json.dumps(job.spec), encoding="utf-8")
        with (
            open(job.folder / "stdout.txt", "wb") as out,
            open(job.folder / "stderr.txt", "wb") as err,
        ):
            process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(spec)],
                env=dict(job.env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._running.append(_Running(job, process, time.monotonic()))

    def _look(self, running: _Running) -> bool:
        """Whether a job is over; reads its result."""
        job, process = running.job, running.process
        code = process.poll()
        job.duration_s = time.monotonic() - running.started
        job.answer = _read(job.folder / RESULT)
        job.progress = _read(job.folder / PROGRESS) or job.progress
        job.is_late = job.answer is None and job.duration_s > self._timeout
        if code is None and job.answer is None and not job.is_late:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            if job.answer is not None:
                process.wait(_GRACE_S)
        _end(process)
        job.code = process.returncode
        return True


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a job."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def last_words(job: Job, num: int = 1) -> str:
    """The last lines that the script has said to standard error."""
    try:
        text = (job.folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = list(_lines(text))
    error = _last_error(lines) if num == 1 else ""
    return error or "\n".join(lines[-num:])


def _last_error(lines: list[str]) -> str:
    """The last line of the last traceback; for a message of several lines, the first of them.

    >>> _last_error(["Traceback (most recent call last):", "  File ...", "E: while reading", "  at 2"])
    'E: while reading at 2'
    """
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if not starts:
        return ""
    rest = itertools.dropwhile(lambda line: line[:1].isspace(), lines[starts[-1] + 1 :])
    return " ".join(line.strip() for line in rest)[:_MAX_WORDS]


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not line.startswith(("stayfinite:", "-----")):
            yield line.rstrip()

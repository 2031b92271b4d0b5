"""Progress of the ladder on stderr: bars in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..report.text import number
from .pool import Job
from .records import Outcome
from .render import ended

__all__ = ["Progress"]


class Progress:
    """Reports to a person at the terminal, or to a log file."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[int, Any] = {}

    def say(self, text: str) -> None:
        """One line."""
        print(f"stayfinite ladder: {text}", file=sys.stderr, flush=True)

    def begin(self, jobs: Sequence[Job], goal: int | None) -> None:
        """These runs are about to start."""
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[news]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        for job in jobs:
            total = None if goal is None else goal + 1
            self._tasks[id(job)] = self._bars.add_task(
                job.label, total=total, start=False, news="waiting"
            )
        self._bars.start()

    def news(self, job: Job) -> None:
        """This run has started."""
        if self._bars is None:
            return
        task = self._tasks[id(job)]
        if not self._bars.tasks[task].started:
            self._bars.start_task(task)
        step, loss = job.progress.get("step"), job.progress.get("loss")
        if step is None:
            self._bars.update(task, news="starting")
            return
        text = f"step {step}" + (f", loss {number(loss)}" if loss is not None else "")
        self._bars.update(task, completed=step + 1, news=text)

    def done(self, job: Job, outcome: Outcome) -> None:
        """This run is over."""
        if self._bars is not None:
            self._bars.update(self._tasks[id(job)], news=outcome.status)
            self._bars.stop_task(self._tasks[id(job)])
        text = f"{outcome.label}: {ended(outcome)} ({outcome.duration_s:.1f} s)"
        if self._bars is None:
            self.say(text)
        else:
            console = self._bars.console
            console.print(
                f"stayfinite ladder: {text}", markup=False, highlight=False, soft_wrap=True
            )

    def end(self) -> None:
        """All of these are over, or cancelled."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._tasks.clear()

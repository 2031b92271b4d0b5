"""A complete check of a training that is given as objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...runtime.rng import RngState
from ..probes import Subject
from ..records import GROUPS, CheckReport
from ..target import understand
from .build import BuildRunner
from .groups import (
    Book,
    conduct,
    drive,
    load_groups,
    loader_finding,
    report_of,
    runs_finding,
    selected,
    without_steps,
)

__all__ = ["check"]


def check(
    build: Any,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    steps: int = 10,
    seed: int = 0,
    config: dict[str, Any] | None = None,
    config_path: str = "",
    prove: bool = False,
    box_path: str = "",
    data_samples: int | None = None,
    label: str = "",
    budget_s: float | None = None,
    pedantic: bool = False,
    save_dir: str | Path | None = None,
    progress: Callable[[str, str], None] | None = None,
    on_samples: Callable[[int, int | None], None] | None = None,
) -> CheckReport:
    """Check a training before it runs: `build` is a function (or what it returns).

    It gives model, loss_fn, loader and optimizer; `loss_fn(model, batch)` returns the loss. The
    training's state is afterwards what it was. `only` and `skip` name groups, `steps` is the number of steps
    of the group stability, `budget_s` the seconds for the search for breaking batches, `pedantic` also
    reports failures that need unrealistic data. Batches that break it are kept in `save_dir`, if that is given,
    for `stayfinite replay`.

        from stayfinite.preflight import check

        report = check(build)
        print(report.verdict, report.first_things())
    """
    start = time.perf_counter()
    names = selected([*(only or GROUPS), "proof"] if prove else only, skip)
    label = label or getattr(build, "__name__", "build")
    built = understand(build() if callable(build) else build, label)
    before = RngState.now()
    again = (lambda: {"": understand(build(), label).model}) if callable(build) else None
    runner = BuildRunner(built, label, seed=seed, rebuild=again)
    subject = runner.prepare()
    subject.num_steps, subject.data_samples = steps, data_samples
    subject.config, subject.config_path = config, config_path
    subject.budget_s, subject.is_pedantic = budget_s, pedantic
    subject.save_dir = str(save_dir) if save_dir is not None else None
    subject.box_path = box_path
    if on_samples is not None:
        subject.on_samples = on_samples
    book = Book(progress=progress)
    names = _note_errors(runner, subject, book, names)
    try:
        drive(conduct(subject, load_groups(names), book), runner.run)
    finally:
        runner.bench.reset()
        before.restore()
    return report_of(label, book, start, _notes(subject))


def _note_errors(
    runner: BuildRunner, subject: Subject, book: Book, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Note what the loader or the first steps raised; returns the groups that can still run."""
    if runner.loader_error is not None:
        book.findings.append(loader_finding(runner.loader_error, len(subject.batches)))
    if runner.first_error is None:
        return names
    error = runner.first_error.error or ""
    if runner.first_error is not runner.loader_error:
        book.findings.append(runs_finding(error, runner.first_error.error_at, len(subject.steps)))
    return without_steps(names, book.skipped, error, len(subject.steps))


def _notes(subject: Subject) -> list[str]:
    done = f"{len(subject.steps)} real step{'s' if len(subject.steps) != 1 else ''}"
    return (
        [f"{done} taken and undone; loss {subject.steps[0].loss:.6g} at first"]
        if (subject.steps and subject.steps[0].loss is not None)
        else []
    )

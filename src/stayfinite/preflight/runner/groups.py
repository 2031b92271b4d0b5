"""Runs the check groups one after another."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...errors import UsageError
from ..probes import Group, Probe, Seen, Subject
from ..records import ALL_GROUPS, GROUPS, CheckReport, Finding, SkippedGroup, failed

__all__ = [
    "Book", "Ledger", "conduct", "drive", "load_groups", "loader_finding", "report_of", "runs_finding", "selected",
    "without_steps",
]  # fmt: skip

_HOMES = {
    "environment": "environment.group",
    "config": "config.group",
    "data": "data.group",
    "init": "init.group",
    "forward": "flow.group",
    "edges": "edges.group",
    "precision": "precision.group",
    "stability": "stability.group",
    "resources": "resources",
    "proof": "proof",
}
"""The module of each group; the function in it has the group's name."""


def selected(only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[str, ...]:
    """The groups to run, in their order; several names in one word are split at commas.

    >>> selected(only=["data,init"])
    ('data', 'init')
    >>> selected(skip=["dat"])
    Traceback (most recent call last):
    stayfinite.errors.UsageError: there is no group 'dat'; groups: environment, config, data, init, forward, edges, precision, stability, resources, proof
    """
    wanted, unwanted = _names(only), _names(skip)
    for name in (*wanted, *unwanted):
        if name not in ALL_GROUPS:
            raise UsageError(f"there is no group {name!r}; groups: {', '.join(ALL_GROUPS)}")
    asked = wanted or list(GROUPS)
    return tuple(g for g in ALL_GROUPS if g in asked and g not in unwanted)


def _names(words: Iterable[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def load_groups(names: Iterable[str]) -> dict[str, Group]:
    """The functions of these groups."""
    return {
        name: getattr(importlib.import_module(f"..{_HOMES[name]}", __package__), name)
        for name in names
    }


class Ledger(Protocol):
    """Records the progress; a script's ledger survives its process."""

    def answer(self, group: str, index: int) -> Seen | None:
        """The result of this probe, if it was run before."""

    def note_answer(self, group: str, index: int, seen: Seen) -> None: ...
    def about_to_ask(self, group: str, index: int, probe: Probe) -> None: ...
    def is_done(self, group: str) -> bool: ...
    def begin(self, group: str) -> None: ...
    def done(
        self, group: str, findings: list[Finding], reason: str | None, seconds: float
    ) -> None: ...


@dataclass
class Book:
    """A ledger in memory."""

    findings: list[Finding] = field(default_factory=list)
    skipped: list[SkippedGroup] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    progress: Callable[[str, str], None] | None = None

    def answer(self, group: str, index: int) -> Seen | None:
        return None

    def note_answer(self, group: str, index: int, seen: Seen) -> None: ...

    def about_to_ask(self, group: str, index: int, probe: Probe) -> None:
        if self.progress is not None:
            self.progress(group, probe.name)

    def is_done(self, group: str) -> bool:
        return group in self.seconds

    def begin(self, group: str) -> None:
        if self.progress is not None:
            self.progress(group, "")

    def done(self, group: str, findings: list[Finding], reason: str | None, seconds: float) -> None:
        self.findings += findings
        if reason is not None:
            self.skipped.append(SkippedGroup(group=group, reason=reason))
        self.seconds[group] = round(seconds, 3)


def conduct(
    subject: Subject, groups: Mapping[str, Group], ledger: Ledger
) -> Generator[Probe, Seen, None]:
    """Yield all probes of the groups in order, except those with known results."""
    for name, group in groups.items():
        if ledger.is_done(name):
            continue
        start = time.perf_counter()
        ledger.begin(name)
        findings: list[Finding] = []
        reason = None
        try:
            findings = yield from _asked(name, group(subject), ledger)
        except GeneratorExit:
            raise
        except Exception as e:
            reason = f"it stopped with {type(e).__name__}: {e} ({_place(e)})"
        ledger.done(name, findings, reason, time.perf_counter() - start)


def _asked(
    name: str, checks: Generator[Probe, Seen, list[Finding]], ledger: Ledger
) -> Generator[Probe, Seen, list[Finding]]:
    """The probes of one group. A chain of kept steps that began in an earlier process is repeated from its start."""
    index = 0
    seen: Seen | None = None
    chain: list[Probe] = []
    marking: list[Probe] = []
    is_live = False
    while True:
        try:
            probe = next(checks) if seen is None else checks.send(seen)
        except StopIteration as stop:
            return list(stop.value)
        probe.fresh = probe.fresh or index == 0  # the group before may have ended amid its steps
        chain = [] if probe.fresh else chain
        seen = ledger.answer(name, index)
        if seen is None:
            if not is_live:
                yield from _taken_again(marking, chain)
            is_live = True
            ledger.about_to_ask(name, index, probe)
            seen = yield probe
            ledger.note_answer(name, index, seen)
        chain = [*chain, probe] if probe.keep and seen.error is None else []
        marking = list(chain) if chain and probe.mark else marking
        index += 1


def _taken_again(marking: list[Probe], chain: list[Probe]) -> Generator[Probe, Seen, None]:
    """The steps that a new process has not taken: those up to the mark, then those since."""
    for steps in (marking, chain if chain != marking else []):
        if steps:
            steps[0].fresh = True
        for again in steps:  # noqa: UP028 - the answers are sent in, and not needed
            yield again


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"


def drive(conducted: Generator[Probe, Seen, None], run: Callable[[Probe], Seen]) -> None:
    """Answer every probe at once."""
    try:
        probe = next(conducted)
        while True:
            probe = conducted.send(run(probe))
    except StopIteration:
        return


FROM_PARTS_ALONE = ("environment", "config", "data", "init")
"""Groups that can say something without a step of the training."""


def without_steps(
    names: tuple[str, ...], skipped: list[SkippedGroup], error: str, step: int | None = 0
) -> tuple[str, ...]:
    """A first step of the training raised: run only the checks that need no step."""
    for name in names:
        if name not in FROM_PARTS_ALONE:
            skipped.append(SkippedGroup(group=name, reason=f"{_which(step)} raised {error}"))
    return tuple(n for n in names if n in FROM_PARTS_ALONE)


MEND = "run the training by itself and mend this first"
NO_INPUT = "it asks for input, and has none under check: take the answer from an argument or a file"


def _which(step: int | None) -> str:
    if step is None:
        return "before its first backward() the script"
    return f"step {step} (from 0)" if step else "the first step"


def runs_finding(error: str, where: str, step: int | None = 0) -> Finding:
    """The training as it is does not get through its first steps."""
    place, _, source = where.partition(" ")
    return failed(
        "forward",
        "forward/runs",
        f"{_which(step)} raised {error}" + (f" at `{source}`" if source else ""),
        NO_INPUT if error.startswith("EOFError") else MEND,
        subject=place,
        weight=4,
    )


def loader_finding(seen: Seen, num_batches: int) -> Finding:
    """The loader does not get through its first batches."""
    place, _, source = seen.error_at.partition(" ")
    return failed(
        "data",
        "data/loader",
        f"batch {num_batches} raised {seen.error}" + (f" at `{source}`" if source else ""),
        "mend the dataset or its collate_fn for this batch",
        subject=place,
        weight=6,
    )


def report_of(target: str, book: Book, start: float, notes: Iterable[str] = ()) -> CheckReport:
    """Everything in one record, the groups in their order."""
    order = {name: i for i, name in enumerate(ALL_GROUPS)}
    findings = sorted(book.findings, key=lambda f: order[f.group])
    return CheckReport(
        target=target,
        findings=tuple(findings),
        skipped=tuple(sorted(book.skipped, key=lambda s: order[s.group])),
        seconds=dict(book.seconds),
        duration_s=round(time.perf_counter() - start, 3),
        notes=tuple(notes),
    )

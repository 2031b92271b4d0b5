"""Climbs the ladder: the unchanged run, single changes, then sets of changes."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..errors import UsageError
from ..plain import from_plain
from ..preflight.target_names import nearest_script, require_module
from .arguments import changed
from .defaults import default_ladder
from .messages import announced, no_input, no_survey, silent_end
from .pool import Job, Pool, last_words
from .records import PROCESSES, Change, LadderReport, Outcome, Survey
from .resolve import Resolver, changed_file
from .values import Try, parse_try

__all__ = ["Plan", "Watcher", "climb"]

_MAX_PAIRS = 28
_SURVEY_S = 300.0
_QUIET = {
    "WANDB_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run and what to try.

    >>> Plan(target="train.py", jobs=0)
    Traceback (most recent call last):
    stayfinite.errors.UsageError: `jobs` must be at least 1, got 0
    """

    target: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    tries: tuple[str, ...] = ()
    """Empty: the default ladder."""
    config: str | None = None
    until_step: int | None = None
    """The unchanged run ends after this step if it has not failed."""
    failing_step: int | None = None
    """The step of a known failure; the unchanged run then serves as a control."""
    margin: int | None = None
    """Steps past the failing one that a rung has to finish; default: 5, or a tenth if that is more."""
    jobs: int | None = None
    timeout_s: float = 3600.0
    run_dir: Path | None = None
    """Keep the output of every run here, instead of in a temporary folder."""

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("until_step", 0), ("margin", 0), ("failing_step", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"`{name}` must be at least {least}, got {value}")
        if not self.timeout_s > 0:
            raise UsageError(f"`timeout` must be above 0, got {self.timeout_s:g}")

    def wanted(self) -> list[Try]:
        """The tries, each once."""
        return [parse_try(t) for t in dict.fromkeys(self.tries)]

    @property
    def command(self) -> str:
        words = ["-m"] if self.is_module else []
        return " ".join([*words, self.target, *self.args])


class Watcher(Protocol):
    """Receives the progress of the ladder."""

    def say(self, text: str) -> None: ...
    def begin(self, jobs: Sequence[Job], goal: int | None) -> None: ...
    def news(self, job: Job) -> None: ...
    def done(self, job: Job, outcome: Outcome) -> None: ...
    def end(self) -> None: ...


def climb(plan: Plan, watcher: Watcher) -> LadderReport:
    """Run the ladder; raises a `UsageError` for a wrong plan before anything trains."""
    if plan.is_module:
        require_module(plan.target)
    elif not Path(plan.target).is_file():
        near = nearest_script(plan.target)
        raise UsageError(f"can't open the script {plan.target!r}: no such file{near}")
    wanted = plan.wanted()
    with _home(plan) as home:
        climber = _Climber(plan, watcher, home)
        started = time.monotonic()
        resolver = climber.survey(wanted)
        changes = [resolver.resolve(t) for t in wanted]
        report = climber.run(resolver, changes)
        return replace(report, duration_s=round(time.monotonic() - started, 3))


@contextmanager
def _home(plan: Plan) -> Iterator[Path]:
    if plan.run_dir is not None:
        try:
            plan.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UsageError(f"cannot write to --run-dir {plan.run_dir}: {e.strerror}") from e
        if any(plan.run_dir.iterdir()):
            raise UsageError(f"--run-dir {plan.run_dir} is not empty\n  try: a new folder")
        yield plan.run_dir.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="stayfinite-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class _Climber:
    def __init__(self, plan: Plan, watcher: Watcher, home: Path) -> None:
        self.plan = plan
        self.watcher = watcher
        self.home = home
        self.notes: list[str] = []
        self.failing_step = plan.failing_step
        self.goal: int | None = None
        self._count = 0
        self._is_alone = False

    def survey(self, wanted: Sequence[Try]) -> Resolver:
        """Survey the script, without training."""
        keys = [t.text for t in wanted if not t.space]
        if wanted and not keys:
            return Resolver(Survey(), self.plan.args, self.plan.config)
        self.watcher.say(f"looking at {self.plan.command} (nothing is trained yet)")
        job = self._job((), {"mode": "survey", "wanted": keys}, "survey")
        Pool(1, min(self.plan.timeout_s, _SURVEY_S)).run([job])
        if job.answer is None:
            raise UsageError(no_survey(self.plan.target, job))
        found = from_plain(Survey, job.answer)
        # They would share the device, or meet at the same port.
        self._is_alone = found.has_accelerator or found.stopped_at == PROCESSES
        if found.stopped_at == "end":
            raise UsageError(
                f"{self.plan.target} ended before any training: no batch, no backward\n"
                "  try: the script and the arguments with which it trains"
            )
        return Resolver(found, self.plan.args, self.plan.config)

    def run(self, resolver: Resolver, changes: list[Change]) -> LadderReport:
        control: list[Outcome] = []
        if self.plan.failing_step is None or not changes:
            self.watcher.say("the unchanged run first: where does it fail?")
            self._set_goal(self.plan.failing_step)
            control = self._outcomes([()])
            if (early := self._stop_early(control[0])) is not None:
                return early
        self._set_goal(self.failing_step)
        changes = changes or default_ladder(resolver, control[0])
        live = [c for c in changes if not c.is_idle]
        self.watcher.say(announced(live, self.failing_step, self.goal))
        sets: list[tuple[Change, ...]] = [(c,) for c in live]
        outcomes = self._outcomes(sets if control else [(), *sets])
        if not control:
            control = outcomes[:1]
            outcomes = outcomes[1:]
            if (early := self._stop_early(control[0])) is not None:
                return replace(early, rungs=tuple(outcomes))
        rungs = self._in_order(changes, outcomes)
        alive = [r for r in rungs if r.is_alive]
        smallest, tried = (alive[0].changes, []) if alive else self._sets(rungs)
        return self._report(control[0], rungs=rungs, sets=tuple(tried), smallest=smallest)

    def _set_goal(self, failing: int | None) -> None:
        self.failing_step = failing
        if failing is None:
            self.goal = self.plan.until_step
            return
        margin = self.plan.margin if self.plan.margin is not None else max(5, failing // 10)
        self.goal = failing + margin

    def _stop_early(self, control: Outcome) -> LadderReport | None:
        """Without a failure there is nothing to fix."""
        if control.status == "failed":
            if self.failing_step is not None and control.step != self.failing_step:
                self.notes.append(
                    f"the unchanged run fails at step {control.step} here, "
                    f"not at step {self.failing_step}"
                )
            self._set_goal(control.step)
            return None
        if control.status == "crashed":
            raise UsageError(
                f"the unchanged run ends with an error before anything non-finite: {control.text}"
                f"{no_input(control.text)}\n"
                "  try: run the script by itself until it comes to its failure"
            )
        known, self.failing_step = self.failing_step, None
        if known is not None:
            self.notes.append(
                f"the incident's step {known} is finite now, with nothing changed: it does not "
                "fail again here, so no change can be said to help"
            )
        return self._report(control)

    def _report(self, control: Outcome, **more: Any) -> LadderReport:
        return LadderReport(
            target=self.plan.command,
            failing_step=self.failing_step,
            goal=self.goal if self.failing_step is not None else None,
            baseline=control,
            notes=tuple(self.notes),
            **more,
        )

    def _in_order(self, changes: list[Change], outcomes: list[Outcome]) -> tuple[Outcome, ...]:
        """As the user gave them, including those that change nothing."""
        by_label = {o.changes[0].label: o for o in outcomes}
        idle = {
            c.label: Outcome(changes=(c,), status="idle", text=f"it is {c.before} already")
            for c in changes
            if c.is_idle
        }
        return tuple((idle | by_label)[c.label] for c in changes)

    def _sets(self, rungs: Sequence[Outcome]) -> tuple[tuple[Change, ...], list[Outcome]]:
        """If no single change helps: all together, then pairs, then as few as possible."""
        usable = [r.changes[0] for r in rungs if r.status in ("failed", "diverging")]
        together = tuple({c.target: c for c in usable}.values())
        if len(together) < 2:
            return (), []
        self.watcher.say("no single change survives: all of them together")
        tried = self._outcomes([together])
        if not tried[0].is_alive:
            return (), tried
        if len(together) == 2:
            return together, tried
        self.watcher.say("together they do: now the smallest set")
        pairs = [
            p for p in itertools.combinations(usable, 2) if p[0].target != p[1].target
        ][:_MAX_PAIRS]  # fmt: skip
        num = self._num_jobs()
        for start in range(0, len(pairs), num):
            tried += self._outcomes(pairs[start : start + num])
            alive = [o for o in tried[1:] if o.is_alive]
            if alive:
                return alive[0].changes, tried
        return self._thinned(together, tried)

    def _thinned(
        self, kept: tuple[Change, ...], tried: list[Outcome]
    ) -> tuple[tuple[Change, ...], list[Outcome]]:
        """Remove every change that is not needed."""
        for change in kept:
            fewer = tuple(c for c in kept if c is not change)
            if len(fewer) <= 2:
                break  # all pairs have failed already
            tried += self._outcomes([fewer])
            if tried[-1].is_alive:
                kept = fewer
        return kept, tried

    def _num_jobs(self) -> int:
        if self.plan.jobs is not None:
            return self.plan.jobs
        return 1 if self._is_alone else min(4, _num_cores())

    def _outcomes(self, sets: Sequence[tuple[Change, ...]]) -> list[Outcome]:
        jobs = [self._rung(changes) for changes in sets]
        found: dict[int, Outcome] = {}

        def on_news(job: Job, is_over: bool) -> None:
            if not is_over:
                self.watcher.news(job)
                return
            i = jobs.index(job)
            found[i] = _outcome(sets[i], job)
            self.watcher.done(job, found[i])

        self.watcher.begin(jobs, self.goal)
        try:
            Pool(self._num_jobs(), self.plan.timeout_s).run(jobs, on_news)
        finally:
            self.watcher.end()
        return [found[i] for i in range(len(jobs))]

    def _rung(self, changes: tuple[Change, ...]) -> Job:
        knobs = {c.key: c.after for c in changes if c.kind == "knob"}
        more = {
            "mode": "rung",
            "knobs": knobs,
            "goal": self.goal,
            "failing_step": self.failing_step or 0,
            "has_margin": self.failing_step is not None,
            "diagnose_seconds": 3.0 if changes else 15.0,
            "changed": sorted({c.file for c in changes if c.file is not None}),
        }
        label = " + ".join(c.label for c in changes) or "unchanged"
        return self._job(changes, more, label)

    def _job(self, changes: tuple[Change, ...], more: Mapping[str, Any], label: str) -> Job:
        folder = self.home / f"{self._count:02}"
        self._count += 1
        args = list(self.plan.args)
        for c in changes:
            if c.kind == "flag":
                args = changed(args, c.flag, c.key, c.after)
        spec = {
            "target": self.plan.target,
            "is_module": self.plan.is_module,
            "args": args,
            "folder": str(folder),
            **more,
        }
        _place_configs(folder, changes)
        return Job(spec, self._environment(folder, changes), folder, label)

    def _environment(self, folder: Path, changes: tuple[Change, ...]) -> dict[str, str]:
        threads = str(max(1, _num_cores() // self._num_jobs()))
        return {
            "OMP_NUM_THREADS": threads,  # the same for all: sums depend on it
            "TORCHINDUCTOR_CACHE_DIR": str(self.home / "compiled"),
            **os.environ,
            **_QUIET,
            "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
            "TMPDIR": str(folder / "tmp"),
            **{c.key: c.after for c in changes if c.kind == "env"},
        }


def _place_configs(folder: Path, changes: Sequence[Change]) -> None:
    """Write changed copies to the redirected place; the files themselves are not changed."""
    from ..sandbox import RedirectedFiles

    texts: dict[str, str] = {}
    for c in changes:
        if c.kind == "config" and c.file is not None:
            text = texts.get(c.file) or Path(c.file).read_text(encoding="utf-8")
            texts[c.file] = changed_file(c.file, text, c)
    files = RedirectedFiles(str(folder))
    for file, text in texts.items():
        for name in {file, os.path.realpath(file)}:  # whichever way the script comes to it
            place = Path(files.place(name))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")


def _outcome(changes: tuple[Change, ...], job: Job) -> Outcome:
    answer = dict(job.answer or {})
    if job.answer is None:
        answer["step"] = job.progress.get("step")
        answer["loss"] = job.progress.get("loss")
        if job.is_late:
            answer |= {"status": "timeout", "text": f"no answer after {job.duration_s:.0f} s"}
        else:
            answer |= {"status": "crashed", "text": last_words(job) or silent_end(job)}
    plain = {k: v for k, v in answer.items() if v is not None}
    base = from_plain(Outcome, {"duration_s": round(job.duration_s, 3), **plain})
    return replace(base, changes=changes)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

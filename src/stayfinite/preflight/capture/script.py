"""Checks an unmodified script: runs it in a separate process until everything is known."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...private import make_folder
from ..probes import Seen
from ..records import GROUPS, CheckReport, SkippedGroup
from ..runner.groups import MEND, NO_INPUT, Book, report_of, selected
from ..target import ScriptTarget
from .launch import ELSEWHERE, as_one_rank, needs_launcher, num_ranks
from .ledger import PREDICTED, read_groups
from .rehearsal import by_measurement, rehearse
from .starter import Process, Starter

__all__ = ["check_script"]

_FIRST_STEPS = 3
_MAX_STARTS = 30
_FEW_STARTS = 8
_PATIENCE_S = 900.0
"""Seconds without progress after which a script counts as hung."""
_QUIET = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "TQDM_DISABLE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

_WITH_STEPS = ("forward", "stability", "edges")
"""Groups that take real steps in a row, or fewer."""
_HUNG = "try: less data, or look at what it waits for: other processes, a download, an answer of somebody"
_CRASHED = "try: run it by itself; native code that crashes, or the memory limit, end a process so"
_NCCL = re.compile(r"have NCCL built in|ProcessGroupNCCL is only supported with GPUs")
_NO_NCCL = (
    "the script asks for the nccl backend, which needs a GPU, and there is none here\n"
    "try: check it on a machine with a GPU, or let it choose: "
    "'nccl' if torch.cuda.is_available() else 'gloo'"
)


def check_script(
    target: ScriptTarget,
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
    budget_s: float | None = None,
    pedantic: bool = False,
    save_dir: str | Path | None = None,
    progress: Callable[[str, str], None] | None = None,
    on_samples: Callable[[int, int | None], None] | None = None,
) -> CheckReport:
    """Check a script unchanged. Its output is muted and its files are redirected."""
    start = time.perf_counter()
    names = list(selected([*(only or GROUPS), "proof"] if prove else only, skip))
    with tempfile.TemporaryDirectory(prefix="stayfinite-check-") as folder:
        job = {
            "name": target.name, "args": list(target.args), "is_module": target.is_module,
            "label": target.label, "groups": names, "steps": steps, "longest_run": None, "seed": seed,
            "config": config, "config_path": config_path, "data_samples": data_samples,
            "box_path": box_path,
            "num_first": _FIRST_STEPS, "budget_s": budget_s, "pedantic": pedantic,
            "saved_as": str(save_dir) if save_dir is not None else None,
        }  # fmt: skip
        session = _Session(Path(folder), job, progress, on_samples)
        book = Book()
        with contextlib.closing(session.starter):
            notes = session.run()
            read_groups(Path(folder), names, book)
            session.rehearse(book)
        if save_dir is not None:
            _keep(Path(folder) / PREDICTED, Path(save_dir))
    for name in names:
        if not book.is_done(name):
            book.skipped.append(SkippedGroup(group=name, reason=session.reason))
    return report_of(target.label, book, start, notes)


def _keep(found: Path, home: Path) -> None:
    """Copy the steps that the script's process has saved for `stayfinite replay` to the user's folder."""
    for folder in sorted((found / "incidents").glob("*")):
        if (folder / "incident.json").is_file():
            target = make_folder(home / "incidents") / folder.name
            shutil.copytree(folder, target, dirs_exist_ok=True)


@dataclass
class _Session:
    """Starts the worker as often as necessary."""

    folder: Path
    job: dict[str, Any]
    progress: Callable[[str, str], None] | None
    on_samples: Callable[[int, int | None], None] | None
    reason: str = ""
    """The reasons for groups that were not run."""
    num_starts: int = 0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    starter: Starter = field(default_factory=Starter)

    def __post_init__(self) -> None:
        if num_ranks(self.environ):
            self.environ = as_one_rank(self.environ)  # the other ranks leave it to this one

    def run(self) -> list[str]:
        while True:
            before = self._num_answers()
            outcome = self._start()
            kind = outcome["kind"]
            if kind in ("finished", "broken") or self._is_complete():
                break
            if kind == "elsewhere":
                raise UsageError(self._trains_elsewhere(outcome["function"]))
            if kind == "raised" and needs_launcher(outcome["error"], self.environ):
                self.environ = as_one_rank(self.environ)
                continue
            has_progress = self._num_answers() > before
            if kind in ("ended", "raised", "died") and not self._has_begun():
                if outcome["num_steps"] == 0 or self.job["num_first"] == 0:
                    raise UsageError(self._ended_early(outcome))
                self.job["num_first"] = min(outcome["num_steps"], self.job["num_first"]) - 1
                continue
            if not has_progress and self._takes_fewer_steps(outcome):
                continue
            if not has_progress or self._is_too_slow():
                self.reason = self._gave_up(outcome)
                break
        return self._notes(outcome)

    def _takes_fewer_steps(self, outcome: dict[str, Any]) -> bool:
        """If the loop ends during the steps that a group takes in a row: use as many as it allows."""
        num_steps = outcome.get("num_probes", 0)
        if num_steps < 2 or num_steps >= (self.job["longest_run"] or math.inf):
            return False
        self.job["longest_run"] = num_steps
        self.job["steps"] = min(num_steps, self.job["steps"])
        for name in _WITH_STEPS:
            if not (self.folder / f"group-{name}.json").exists():
                for path in self.folder.glob(f"answer-{name}-*.pkl"):
                    path.unlink()
        return True

    def _is_too_slow(self) -> bool:
        """Whether it takes too many starts: a script with one step per run is started for every probe."""
        is_slow = self.num_starts >= _FEW_STARTS and self._num_answers() < 3 * self.num_starts
        return is_slow or self.num_starts >= _MAX_STARTS

    def _num_answers(self) -> int:
        done = [*self.folder.glob("answer-*.pkl"), *self.folder.glob("group-*.json")]
        return len(done)

    def _is_complete(self) -> bool:
        return all((self.folder / f"group-{name}.json").exists() for name in self.job["groups"])

    def _has_begun(self) -> bool:
        return self._num_answers() > 0

    def _start(self) -> dict[str, Any]:
        self.num_starts += 1
        (self.folder / "job.json").write_text(json.dumps(self.job))
        (self.folder / "outcome.json").unlink(missing_ok=True)
        (self.folder / "now.json").unlink(missing_ok=True)
        for name in (
            "files",
            "tmp",
        ):  # each start finds what the user has, not what the last one left
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "tmp").mkdir()
        process = self._launch("worker", self.folder / "output.txt")
        is_hung = True
        try:
            is_hung = self._follow(process)
        finally:
            _stop(process, patience_s=0 if is_hung else 1)
        path = self.folder / "outcome.json"
        note = self.folder / ELSEWHERE
        if note.exists():
            return {"kind": "elsewhere", **json.loads(note.read_text())}
        if path.exists():
            outcome: dict[str, Any] = json.loads(path.read_text())
            return outcome
        return self._died(process.returncode or 0, is_hung)

    def _launch(self, module: str, output: Path) -> Process:
        name = f"stayfinite.preflight.capture.{module}"
        return self.starter.start(name, self.folder, output, self._environment())

    def rehearse(self, book: Book) -> None:
        """Rehearse the whole training, if its first steps succeed."""
        if "stability" not in self.job["groups"] or not book.is_done("stability"):
            return
        if self.progress is not None:
            self.progress("stability", "the whole training in short")
        start = time.perf_counter()
        found = rehearse(self.job, self.folder, book.findings, self._launch, _kill)
        book.findings = by_measurement([*book.findings, *found])
        book.seconds["stability"] += round(time.perf_counter() - start, 3)

    def _environment(self) -> dict[str, str]:
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "compiled"),
            **(as_one_rank(self.environ) if "RANK" in self.environ else self.environ),
            **_QUIET,
            "MLFLOW_TRACKING_URI": (self.folder / "tmp" / "mlruns").as_uri(),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def _follow(self, process: Process) -> bool:
        """Wait for its end; True if it was silent for too long."""
        shown: Any = None
        last = time.monotonic()
        while process.poll() is None:
            time.sleep(0.05)
            now = self._now()
            if now != shown:
                shown, last = now, time.monotonic()
                self._show(now)
            if any((self.folder / name).exists() for name in ("outcome.json", ELSEWHERE)):
                return False
            if time.monotonic() - last > _PATIENCE_S:
                return True
        return False

    def _now(self) -> dict[str, Any]:
        try:
            now: dict[str, Any] = json.loads((self.folder / "now.json").read_text())
            return now
        except (OSError, ValueError):
            return {}

    def _show(self, now: dict[str, Any]) -> None:
        if self.progress is not None and now:
            self.progress(now["group"], now["probe"])
        if self.on_samples is not None and now.get("share"):
            self.on_samples(*now["share"])

    def _died(self, code: int, is_hung: bool) -> dict[str, Any]:
        """Called if it left no result: the current probe is the cause."""
        how = f"gave no sign for {_PATIENCE_S:.0f} s" if is_hung else f"died: {_how_ended(code)}"
        now = self._now()
        if now.get("index") is not None:
            seen = Seen(now["probe"], is_finite=False, error=f"the process {how}")
            path = self.folder / f"answer-{now['group']}-{now['index']}.pkl"
            path.write_bytes(pickle.dumps(seen))
            return {"kind": "probe"}
        advice = _HUNG if is_hung else _CRASHED
        return {"kind": "died", "error": how, "advice": advice, "num_steps": 0}

    def _tail(self) -> str:
        text = (self.folder / "output.txt").read_text(errors="replace").strip()
        lines = text.splitlines()[-3:]
        return "\n  its last words: " + "\n    ".join(lines) if lines else ""

    def _ended_early(self, outcome: dict[str, Any]) -> str:
        label = self.job["label"]
        if outcome["kind"] == "raised":
            where = f"\nwhere: {outcome['where']}" if outcome.get("where") else ""
            return f"{label} raised {outcome['error']} before its first step{where}\n" + _advice(
                outcome["error"]
            )
        if outcome["kind"] == "died":
            early = f"{outcome['error']} before check had seen its first steps"
            return f"{label} {early}{self._tail()}\n{outcome['advice']}"
        if outcome["num_backward"] > 1:
            return (
                f"{label} called backward() {outcome['num_backward']} times and step() of a torch.optim "
                "optimizer never: nothing is learned, unless it changes its weights by hand\n"
                "try: call step() of the optimizer after backward(); updates by hand cannot be checked"
            )
        hint = self._tail() if outcome["code"] else ""
        seen = [
            _count(outcome["num_optimizers"], "optimizer"),
            _count(outcome["num_batches"], "batch"),
        ]
        return (
            f"{label} ended with exit code {outcome['code']} before any training step{hint}\n"
            f"seen: {', '.join(seen)}; expected a loop that takes batches from a DataLoader, calls "
            "backward() and optimizer.step()"
        )

    def _trains_elsewhere(self, function: str) -> str:
        return (
            f"{self.job['label']} trains in processes that it starts itself, by {function}(); check "
            "looks at one process\n"
            "try: have it start one (nprocs=1), or start its ranks by torchrun, or check a function "
            "that makes the training: stayfinite check FILE.py:build"
        )

    def _gave_up(self, outcome: dict[str, Any]) -> str:
        if self._is_too_slow():
            return (
                f"the script was started {self.num_starts} times, and its loop ended each time after "
                "a few steps: let it take 100 or more (a larger --max-steps or the like)"
            )
        if outcome["kind"] == "raised":
            return f"the script raised {outcome['error']}"
        if outcome["kind"] == "unprobed":
            return str(outcome["error"])
        return "the script's loop ended before this could be tried"

    def _notes(self, outcome: dict[str, Any]) -> list[str]:
        notes = []
        if outcome.get("num_steps"):
            loss = outcome["first_loss"]
            said = f"; loss {loss:.6g} at first" if isinstance(loss, float) else ""
            notes.append(f"{_count(outcome['num_steps'], 'real step')} taken and undone{said}")
        if "RANK" in self.environ:
            notes.append("checked as the only process of a distributed training (world size 1)")
        if outcome.get("code"):
            notes.append(f"the script itself ended with exit code {outcome['code']}")
        if self.num_starts > 1:
            notes.append(f"the script was started {self.num_starts} times")
        if outcome.get("vehicle") == "call" and outcome["kind"] != "broken":
            notes.append(
                "the loop takes no batches from a DataLoader: what the model is called with was "
                "changed, and the loop made the targets"
            )
        num_held = sum(p.is_file() for p in (self.folder / "files").rglob("*"))
        if num_held:
            notes.append(f"{_count(num_held, 'file')} that it wrote held back")
        return notes


def _advice(error: str) -> str:
    if _NCCL.search(error):
        return _NO_NCCL
    return f"try: {NO_INPUT if error.startswith('EOFError') else MEND}"


def _count(number: int, what: str) -> str:
    plural = {"batch": "batches"}.get(what, f"{what}s")
    return f"{number or 'no'} {what if number == 1 else plural}"


def _how_ended(code: int) -> str:
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _stop(process: Process, patience_s: float) -> None:
    """End the process, with its DataLoader workers and other children."""
    try:
        process.wait(timeout=patience_s)
    except subprocess.TimeoutExpired:
        pass
    except KeyboardInterrupt:
        _kill(process)
        raise
    _kill(process)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

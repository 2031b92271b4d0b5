"""Runs a whole training in short: `python -m stayfinite.preflight.capture.rehearsal_worker FOLDER`.

Unlike probes, it also runs the code after the training, so connections and other programs are refused from the first step on.
Every epoch has a few batches, and `len(loader)` says so: schedules, temperatures and stages that depend on the epoch run
completely in a few steps. Failures are investigated as in `stayfinite run`; files are redirected.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...config import Settings
from ...investigate.entry import investigate
from ...patches.manager import Subscribers, Target, subscribe
from ...plain import to_plain
from ...records import Incident
from ...recover.policy import Policy
from ...runtime.script.run_script import ScriptRun
from ...sandbox import Refused, redirect_for_good
from .ledger import end_with_the_parent
from .rehearsal import NEWS, RESULT

__all__ = ["main"]

_NEWS_S = 0.5
_MOST_INCIDENTS = 3
_MOST_SKIPS = 12
_KINDS = ("nonfinite", "scale_collapse")
_DIAGNOSE_S = 2.0
"""The rules name the cause; a proof is what `stayfinite run` and `fix` are there for."""


class Rehearsal(ScriptRun):
    """A `stayfinite run` that ends when enough is known."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self.num_steps = self._num_bad = 0
        self._rates: list[float] = []
        self._losses: list[float] = []
        self._known: dict[tuple[Any, ...], Incident] = {}
        self._end_at: float | None = None
        self._news_at = 0.0
        super().__init__(
            # Nothing that the script writes is kept, so a replay may do anything.
            settings=Settings(diagnose_seconds=_DIAGNOSE_S, replay="full"),
            policy=Policy.parse("skip", on_spike="ignore"),
            run_dir=Path(job["folder"]) / "rehearsal",
            investigate=investigate,
            resume_check=False,
        )

    def _set_up(self, folder: Path | None, name: str) -> None:
        super()._set_up(folder, name)
        assert self.folder is not None
        self.folder._say = lambda incident: None
        journal = self.engine.journal
        if journal is not None:
            for method in ("step", "skipped"):
                setattr(journal, method, self._counted(getattr(journal, method)))

    def _counted(self, original: Any) -> Any:
        def note(row: Any, *args: Any) -> None:
            original(row, *args)
            self._note_step(row[2])

        return note

    def _note_step(self, loss: float | None) -> None:
        self.num_steps += 1
        if loss is not None:
            self._losses.append(float(loss))
        self._rates.append(max((abs(r) for r in self.engine.state.lrs()), default=0.0))
        now = time.process_time()
        if now > self._news_at + _NEWS_S:
            self._news_at = now
            Path(self._job["folder"], NEWS).touch()
        if self._end_at is None:
            self._end_at = now + self._job["seconds"]
        elif now > self._end_at:
            self.finish("time")

    def _save(self, incident: Incident) -> Incident:
        saved = super()._save(incident)
        if saved.event.kind in _KINDS and saved.event.phase != "checkpoint":
            where = saved.location
            self._known.setdefault((where.file, where.line), saved)
            self._num_bad += 1
            if len(self._known) >= _MOST_INCIDENTS or self._num_bad >= _MOST_SKIPS:
                self.finish("broken")
        return saved

    def finish(self, how: str, error: str = "") -> None:
        """Write the result, and end at once without running more of the script."""
        content = {
            "how": how,
            "error": error,
            "num_steps": self.num_steps,
            "rate": max(self._rates, default=0.0),
            "is_falling": _is_falling(self._losses),
            "incidents": to_plain(list(self._known.values())),
        }
        draft = Path(self._job["folder"], f".{RESULT}")
        draft.write_text(json.dumps(content), encoding="utf-8")
        os.replace(draft, Path(self._job["folder"], RESULT))
        sys.stdout.flush()
        os._exit(0)


_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
_REFUSED = "refused in a rehearsal: "


def refuse_outside(is_on: Callable[[], bool]) -> None:
    """From when `is_on` says so, for as long as this process lives: no connection, no other program."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        is_network = event == "socket.connect" and isinstance(args[1], tuple)
        if (is_network or event in _PROGRAMS) and is_on():
            raise Refused(_REFUSED + ("a connection" if is_network else "another program"))

    sys.addaudithook(hook)


def _is_falling(losses: Sequence[float]) -> bool:
    """Whether the last losses are below the first ones.

    >>> _is_falling([3.0, 2.9, 2.5, 1.0, 0.9, 1.1]), _is_falling([1.0, 1.0, 2.0])
    (True, False)
    """
    few = max(1, len(losses) // 5)
    finite = [x for x in losses if math.isfinite(x)]
    return len(finite) > 1 and median(finite[-few:]) < median(finite[:few])


def shorten_epochs(most: int) -> None:
    """End every loader after this many batches, until the process ends."""
    reason = "an epoch of the rehearsal is short"
    subscribe(Target(_BaseDataLoaderIter, "__next__", reason, "check"), _next, most)
    subscribe(Target(DataLoader, "__len__", reason, "check"), _len, most)


def _next(original: Any, subscribers: Subscribers) -> Any:
    def __next__(iterator: Any) -> Any:
        if any(iterator._num_yielded >= most for most in subscribers):
            raise StopIteration
        return original(iterator)

    return __next__


def _len(original: Any, subscribers: Subscribers) -> Any:
    def __len__(loader: Any) -> int:
        number: int = min(original(loader), *subscribers)
        return number

    return __len__


def main(folder: Path) -> None:
    """Run the job in `folder`, and write the result there."""
    job: dict[str, Any] = json.loads((folder / "rehearsal-job.json").read_text(encoding="utf-8"))
    end_with_the_parent(folder)
    redirect_for_good(str(folder))
    shorten_epochs(job["most_batches"])
    torch.manual_seed(job["seed"])
    random.seed(job["seed"])
    torch.compiler.set_stance("force_eager")
    run = Rehearsal(job)
    refuse_outside(lambda: run.num_steps > 0)
    start = run.run_module if job["is_module"] else run.run_file
    code = start(job["name"], list(job["args"]))
    run.finish("end" if code == 0 else "raised")


if __name__ == "__main__":
    from stayfinite.preflight.capture import rehearsal_worker

    rehearsal_worker.main(Path(sys.argv[1]))

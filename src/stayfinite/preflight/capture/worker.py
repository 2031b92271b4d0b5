"""Runs the user's script: `python -m stayfinite.preflight.capture.worker FOLDER`.

Every result is written to FOLDER at once, so that a script that dies of a probe can be restarted with the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from ...patches.manager import Subscribers, Target, subscribe
from ...plain import to_plain
from ...recover.policy import Policy
from ...runtime.script.as_main import run_module_as_main, run_path_as_main
from ...sandbox import redirect_for_good
from ..probes import Probe, Seen, Subject
from ..records import Finding, SkippedGroup
from ..runner.build import error_place
from ..runner.casts import noting_autocast
from ..runner.groups import (
    FROM_PARTS_ALONE,
    conduct,
    drive,
    load_groups,
    runs_finding,
    without_steps,
)
from .children import Elsewhere, keep_children
from .ledger import PREDICTED, FolderLedger, end_with_the_parent, write_whole
from .loop import Captor, Finished, KeptBatches, Unprobed
from .patches import CapturePatches

__all__ = ["Job", "main"]

Job = dict[str, Any]


def main(folder: Path) -> None:
    """Run the job in `folder` and write the result there."""
    job: Job = json.loads((folder / "job.json").read_text())
    end_with_the_parent(folder)
    ledger = FolderLedger(folder)
    ledger.say("", "starting the script")

    def begin(subject: Subject) -> Generator[Probe, Seen, None]:
        _fill(subject, job, ledger)
        subject.save_dir = str(folder / PREDICTED) if job["saved_as"] is not None else None
        subject.saved_as = job["saved_as"]
        return conduct(subject, load_groups(job["groups"]), ledger)

    captor = Captor(job["num_first"], begin)
    has_reported = False

    def report(outcome: dict[str, Any]) -> None:
        nonlocal has_reported
        if not has_reported:
            has_reported = True
            _write_outcome(folder, _completed(outcome, job, captor, ledger))

    def hook(args: Any) -> None:
        """A script may train in a thread: what ends that ends the script."""
        if captor.thread == threading.get_ident():
            report(_judged(args.exc_value, captor, ledger))
        threading.__excepthook__(args)

    threading.excepthook = hook
    redirect_for_good(str(folder))
    keep_children(str(folder))
    _let_guards_go_on()
    _soften_exit()
    _seed(job["seed"])
    with noting_autocast(captor.dtypes), contextlib.closing(CapturePatches(captor)):
        try:
            _run(job)
        except BaseException as e:
            # What the script made lives on as long as its exception.
            report(_judged(e, captor, ledger))
        else:
            _note(ledger, captor.ended())
            report({"kind": "ended", "code": 0})


def _completed(
    outcome: dict[str, Any], job: Job, captor: Captor, ledger: FolderLedger
) -> dict[str, Any]:
    """With what the parent says to the user about it."""
    if outcome["kind"] == "ended":
        captor.note_end()
    if outcome["kind"] == "raised":
        _broken(job, captor, ledger, outcome)
    elif outcome["kind"] in ("ended", "unprobed") and captor.steps:
        _unprobed(job, captor, ledger, outcome)
    return {
        **outcome,
        "num_steps": len(captor.steps),
        "num_batches": captor.watch.num_batches,
        "num_probes": captor.bench.num_done,
        "num_backward": captor.num_backward,
        "num_optimizers": captor.num_optimizers,
        "vehicle": captor.subject.vehicle if captor.subject is not None else "",
        "first_loss": captor.steps[0].loss if captor.steps else None,
    }


def _write_outcome(folder: Path, outcome: dict[str, Any]) -> None:
    write_whole(folder / "outcome.json", json.dumps(to_plain(outcome)).encode())


def _let_guards_go_on() -> None:
    """A guard of the script's own leaves out the batches that break: it must not count them to its limit."""
    reason = "a guard of the script's own does not count probes"
    subscribe(Target(Policy, "stop_reason", reason, "check"), _no_reason, None)


def _no_reason(original: Any, subscribers: Subscribers) -> Any:
    def stop_reason(policy: Any, num_consecutive: int, num_total: int) -> None:
        return None

    return stop_reason


def _soften_exit() -> None:
    """Replace `os._exit`, which would prevent writing the result: in the main thread it becomes `sys.exit`."""
    leave, own = os._exit, os.getpid()

    def exit_softly(code: int) -> None:
        if os.getpid() == own and threading.current_thread() is threading.main_thread():
            raise SystemExit(code)
        leave(code)

    os._exit = exit_softly  # type: ignore[assignment]


def _fill(subject: Subject, job: Job, ledger: FolderLedger) -> None:
    subject.source, subject.seed = job["label"], job["seed"]
    subject.num_steps, subject.data_samples = job["steps"], job["data_samples"]
    subject.longest_run = job["longest_run"]
    subject.config, subject.config_path = job["config"], job["config_path"]
    subject.budget_s, subject.is_pedantic = job["budget_s"], job["pedantic"]
    subject.box_path = job["box_path"]
    subject.on_samples = lambda done, total: ledger.say("data", "", share=[done, total])


def _judged(error: BaseException | None, captor: Captor, ledger: FolderLedger) -> dict[str, Any]:
    """The meaning of how the script ended."""
    if isinstance(error, Finished):
        return {"kind": "finished"}
    if isinstance(error, Unprobed):
        return {"kind": "unprobed"}
    if isinstance(error, KeptBatches):
        return {"kind": "ended", "code": 0}
    if isinstance(error, Elsewhere):
        return {"kind": "elsewhere", "function": str(error)}
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        _note(ledger, captor.ended())
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
        return {"kind": "ended", "code": code}
    assert error is not None
    where = error_place(error)
    if _note(ledger, captor.raised(error, where)):
        return {"kind": "probe"}
    text = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": ")
    return {"kind": "raised", "error": said, "where": where}


def _note(ledger: FolderLedger, seen: Seen | None) -> bool:
    """The probe that was running when the script ended has its answer, if it has one."""
    if seen is None or ledger.current is None:
        return False
    ledger.note_answer(*ledger.current, seen)
    return True


def _run(job: Job) -> None:
    run = run_module_as_main if job["is_module"] else run_path_as_main
    run(job["name"], job["args"])


def _broken(job: Job, captor: Captor, ledger: FolderLedger, outcome: dict[str, Any]) -> None:
    """The script's own first step raised: what can be looked at without any step, still is."""
    error, where = outcome["error"], outcome["where"]
    step = len(captor.steps) if captor.watch.num_batches or captor.num_backward else None
    skipped: list[SkippedGroup] = []
    names = without_steps(tuple(job["groups"]), skipped, error, step)
    reported = {"forward": [runs_finding(error, where, step)]}
    if _from_parts(names, skipped, reported, captor, ledger):
        outcome["kind"] = "broken"


def _unprobed(job: Job, captor: Captor, ledger: FolderLedger, outcome: dict[str, Any]) -> None:
    """No batch of the loop can be changed: what can be looked at without that, still is."""
    reason = captor.why_unprobed()
    if not reason:
        return
    names = tuple(n for n in job["groups"] if n in FROM_PARTS_ALONE)
    left = [n for n in job["groups"] if n not in names]
    skipped = [SkippedGroup(group=n, reason=reason) for n in left]
    outcome["error"] = reason
    if _from_parts(names, skipped, {}, captor, ledger):
        outcome["kind"] = "broken"


def _from_parts(
    names: tuple[str, ...],
    skipped: list[SkippedGroup],
    reported: dict[str, list[Finding]],
    captor: Captor,
    ledger: FolderLedger,
) -> bool:
    """These groups, and what is reported of those that are left out; False where there is no training at all."""
    if captor.start_where_it_stands() is None or captor.subject is None:
        return False
    drive(conduct(captor.subject, load_groups(names), ledger), _refuse)
    for s in skipped:
        ledger.done(s.group, reported.get(s.group, []), s.reason, 0.0)
    return True


def _refuse(probe: Probe) -> Seen:
    return Seen(probe.name, error="the script is over")


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


if __name__ == "__main__":
    # By its own name: what is called __main__ is taken for the script.
    from stayfinite.preflight.capture.worker import main as run_worker

    run_worker(Path(sys.argv[1]))

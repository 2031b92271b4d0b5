"""Rehearses the whole training with short epochs, in its own process, to find late failures."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...plain import from_plain
from ...records import Incident
from ...report.text import headline
from ..records import Finding, failed, passed, skipped, warned
from .starter import Process

__all__ = ["NEWS", "RESULT", "by_measurement", "rehearse"]

CHECK = "stability/rehearsal"
RESULT = "rehearsal.json"
NEWS = "rehearsal-news"
"""The files that it leaves."""
MOST_BATCHES = 8
SECONDS = 5.0
"""Of computing, from the first step on."""
_FEWEST_BATCHES = 2
_EPOCHS = 2.5
"""This many are to fit the seconds: what follows the epochs is what this is for."""
_BUDGET_SHARE = 0.3
_PATIENCE_S = 120.0
"""Seconds without a sign of life before it is given up; long, because the machine may be busy."""
_RATE_CAUSES = ("lr_divergence", "exploding_gradient", "bad_schedule")
"""A schedule that is shortened climbs faster than the real one: these are no certainty."""

Start = Callable[[str, Path], Process]
Stop = Callable[[Process], None]


def rehearse(
    job: Mapping[str, Any], folder: Path, found: Sequence[Finding], start: Start, stop: Stop
) -> list[Finding]:
    """Its result as findings of the stability group; `found`: the findings of the other groups."""
    if any(f.check == "forward/runs" and f.status == "fail" for f in found):
        return [skipped("stability", CHECK, "the first steps raise: see forward")]
    seconds = SECONDS if job["budget_s"] is None else max(1.0, _BUDGET_SHARE * job["budget_s"])
    most = _num_batches(seconds, _step_seconds(folder))
    content = {
        "folder": str(folder), "most_batches": most, "seconds": seconds,
        **{key: job[key] for key in ("name", "args", "is_module", "seed")},
    }  # fmt: skip
    (folder / "rehearsal-job.json").write_text(json.dumps(content), encoding="utf-8")
    shutil.rmtree(folder / "files", ignore_errors=True)
    process = start("rehearsal_worker", folder / "rehearsal.txt")
    try:
        _wait(process, folder)
    finally:
        stop(process)
    try:
        seen = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [skipped("stability", CHECK, "the shortened training did not come to an end")]
    return _findings({**seen, "most_batches": most}, job, folder, found)


def _num_batches(seconds: float, step_seconds: float) -> int:
    """The number of batches per epoch: fewer if a step takes long.

    >>> _num_batches(5.0, 0.001), _num_batches(5.0, 0.5), _num_batches(5.0, 30.0)
    (8, 4, 2)
    """
    fitting = int(seconds / (_EPOCHS * max(step_seconds, 1e-4)))
    return max(_FEWEST_BATCHES, min(MOST_BATCHES, fitting))


def _step_seconds(folder: Path) -> float:
    """The duration of a real step, measured by the stability group; 0 if it ran none."""
    paths = sorted(folder.glob("answer-stability-*.pkl"))
    found = sorted(pickle.loads(path.read_bytes()).seconds for path in paths)
    return float(found[len(found) // 2]) if found else 0.0


def _wait(process: Process, folder: Path) -> None:
    news, last = 0.0, time.monotonic()
    while process.poll() is None and not (folder / RESULT).exists():
        time.sleep(0.05)
        now = _when_written(folder / NEWS)
        if now != news:
            news, last = now, time.monotonic()
        if time.monotonic() - last > _PATIENCE_S:
            return


def _when_written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _findings(
    seen: dict[str, Any], job: Mapping[str, Any], folder: Path, found: Sequence[Finding]
) -> list[Finding]:
    incidents = [from_plain(Incident, i) for i in seen["incidents"]]
    failed_subjects = {f.subject for f in found if f.status == "fail"}
    new = [i for i in incidents if _place(i) not in failed_subjects]
    if new:
        return [_finding(i, seen, _saved(i, job, folder)) for i in new]
    steps = f"{seen['num_steps']} steps in epochs of at most {seen['most_batches']} batches"
    if incidents:
        return [passed("stability", CHECK, f"{steps}: it breaks only where a check above says so")]
    if seen["how"] == "raised":
        return [skipped("stability", CHECK, f"after {steps} the shortened training raised")]
    if not seen["num_steps"]:
        return [skipped("stability", CHECK, "the shortened training took no step")]
    is_whole = seen["how"] == "end"
    data = {"is_whole": is_whole, "is_falling": seen["is_falling"], "rate": seen["rate"]}
    whole = "the whole training in short, " if is_whole else "as much as fits its time: "
    return [passed("stability", CHECK, f"{whole}{steps}: finite", data=data)]


def by_measurement(found: Sequence[Finding]) -> list[Finding]:
    """Drop the warning of an unusual rate if the rehearsal learns with it."""
    healthy = next((f for f in found if f.check == CHECK and f.status == "pass"), None)
    if healthy is None or not (healthy.data.get("is_whole") and healthy.data.get("is_falling")):
        return list(found)
    return [_measured(f) if f.check == "config/lr" and f.status == "warn" else f for f in found]


def _measured(warning: Finding) -> Finding:
    text = f"{warning.value}: unusual, but the whole training in short learns with it"
    return replace(warning, status="pass", value=text, action="")


def _finding(incident: Incident, seen: dict[str, Any], saved: str) -> Finding:
    where, cause = incident.location, incident.diagnosis.cause
    is_certain = where.op is not None and bool(cause) and cause not in _RATE_CAUSES
    is_certain = is_certain and incident.event.kind == "nonfinite"
    source = f": {where.source.strip()}" if where.source else ""
    fix = next((f for f in incident.diagnosis.fixes if f.status != "refuted"), None)
    report = failed if is_certain else warned
    return report(
        "stability",
        CHECK,
        f"in short it breaks: {headline(incident).partition(';')[0]}{source}",
        fix.title if fix is not None else "make this line safe before the long run",
        subject=_place(incident),
        why=f"seen: its own loop on a copy, epochs of at most {seen['most_batches']} batches, rates up to "
        f"{seen['rate']:.3g}",
        weight=6.0 if is_certain else 4.0,
        location=where,
        cause=cause or "",
        data={
            "is_executed": True,
            "level": "likely" if is_certain else "possible",
            "step": incident.event.step,
            "op": where.op,
            "saved": saved or None,
        },
    )


def _place(incident: Incident) -> str:
    where = incident.location
    return f"{Path(where.file).name}:{where.line}" if where.file and where.line else ""


def _saved(incident: Incident, job: Mapping[str, Any], folder: Path) -> str:
    """Its step beside those of the other groups, for `stayfinite replay`."""
    source = folder / "rehearsal" / "incidents" / incident.id
    if job["saved_as"] is None or not (source / "incident.json").is_file():
        return ""
    shutil.copytree(source, folder / "predicted" / "incidents" / incident.id, dirs_exist_ok=True)
    return str(Path(job["saved_as"]) / "incidents" / incident.id)

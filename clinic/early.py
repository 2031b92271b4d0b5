"""`python -m clinic.early`: is a divergence announced before its first non-finite value?

    python -m clinic.early [--half dev|held_out] [--examples]

Every divergence of the clinic under a Guard: at which step the early warning came, and how many steps
were left. Then every control and fixed twin, for false ones. With `--examples` only the five examples, each
by `stayfinite run`: whether anything was announced, and what loss and gradient norm were before it broke.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from clinic.form import SPLITS, Case, all_cases, all_controls
from stayfinite import Guard
from stayfinite.demo.cases import Case as Example
from stayfinite.demo.cases import cases as demo_cases

DIVERGING = {"lr_divergence", "resume_mismatch", "exploding_gradient"}
HEALTHY_STEPS = 400


def watched(case: Case, most: int | None = None) -> tuple[list[int], int | None, int]:
    """(steps of early warnings, the step of the first incident, steps made)"""
    guard = Guard(
        case.model, case.optimizer, scheduler=case.scheduler, scaler=case.scaler,
        clip_norm=case.clip_norm,
    )  # fmt: skip
    num_steps = 0
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), guard:
        warnings.simplefilter("ignore")
        while True:
            for batch in case.loader:
                guard.step(case.loss_fn, batch)
                num_steps += 1
                if guard.incidents or (most is not None and num_steps >= most):
                    break
            if guard.incidents or most is None or num_steps >= most:
                break
    reported = [w.step for w in guard.warnings if w.kind == "headroom"]
    first = guard.incidents[0].event.step if guard.incidents else None
    return reported, first, num_steps


def main(arguments: list[str]) -> int:
    """Exit code 0 when the bars are reached."""
    parser = argparse.ArgumentParser(prog="python -m clinic.early")
    parser.add_argument("--half", choices=SPLITS)
    parser.add_argument("--examples", action="store_true")
    args = parser.parse_args(arguments)
    half = args.half
    if args.examples:
        return _examples()
    torch.set_num_threads(1)
    leads: list[int] = []
    num_cases = 0
    entries = [e for e in all_cases() if half is None or e.truth.split == half]
    for entry in entries:
        if entry.truth.cause not in DIVERGING or entry.truth.step < 1:
            continue
        case = entry.build()
        reported, first, _ = watched(case)
        case.close()
        num_cases += 1
        lead = (
            first - reported[0] if reported and first is not None and reported[0] < first else None
        )
        if lead is not None:
            leads.append(lead)
        print(
            f"{entry.name:<38} {entry.truth.cause:<20} fails at {first}, warned at {reported[:1]}"
        )
    share = len(leads) / max(1, num_cases)
    lead_text = f"median lead {statistics.median(leads):g} steps" if leads else "no lead"
    print(
        f"warned before the first non-finite value: {len(leads)} of {num_cases} ({share:.0%}), {lead_text}"
    )
    false, total = _healthy(entries)
    print(f"false warnings: {len(false)} in {total:,} healthy steps {false}")
    return 0 if share >= 0.8 and len(false) <= max(1, total // 10_000) else 1


def _examples() -> int:
    """Exit code 0 when four of five were announced."""
    examples = [c for c in demo_cases().values() if c.script.name == "train.py"]
    announced = [_example(case) for case in examples]
    print(
        f"warned before the first non-finite value: {sum(announced)} of {len(announced)} examples"
    )
    return 0 if sum(announced) >= 0.8 * len(announced) else 1


def _example(case: Example) -> bool:
    """One example under `run`: was its first bad step announced?"""
    with tempfile.TemporaryDirectory() as home:
        place = Path(home) / case.name
        shutil.copytree(case.script.parent, place)
        command = [
            sys.executable,
            "-m",
            "stayfinite",
            "run",
            "--run-dir",
            "run",
            "train.py",
            *case.args,
        ]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=place, capture_output=True, env=environ, check=False)
        lines = (place / "run" / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    steps = {r["step"]: r for r in rows if "loss" in r and "event" not in r}
    reported = [r["step"] for r in rows if r.get("event") == "warning" and r["about"] == "headroom"]
    bad = [
        s for s, r in steps.items() if "incident" in r.get("flags", ()) and r["loss"] is not None
    ]
    first = min(bad, default=None)
    before = [s for s in sorted(steps) if first is not None and first - 3 <= s < first]
    course = ", ".join(f"{steps[s]['loss']} (norm {steps[s].get('grad_norm')})" for s in before)
    print(f"{case.name:<14} fails at {first}, warned at {reported[:1]}; losses before: {course}")
    return first is not None and any(s < first for s in reported)


def _healthy(entries: list[object]) -> tuple[list[str], int]:
    false: list[str] = []
    total = 0
    builds = [(e.name, e.build_fixed) for e in entries] + [
        (e.name, e.build) for e in all_controls()
    ]
    for name, build in builds:
        case = build()
        try:
            reported, _, number = watched(case, HEALTHY_STEPS if case.scheduler is None else None)
        except Exception as e:
            print(f"  {name}: {type(e).__name__}: {e}".splitlines()[0])
            continue
        finally:
            case.close()
        total += number
        false += [f"{name} at {s}" for s in reported]
    return false, total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

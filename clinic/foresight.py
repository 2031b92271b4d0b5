"""`python -m clinic.foresight`: what `check` says of a late failure, given only the batches before it.

    python -m clinic.foresight [NAME ...] [--half dev|held_out] [--silence] [--verbose]

NAME picks cases by name or cause; --silence also checks the fixed twins and the controls, in the same
form: only batches, no data set behind them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from clinic.form import SPLITS, Case, Entry, all_cases, all_controls
from stayfinite.preflight import CheckReport, Finding, check

UNSEEN = {"hardware_or_nondeterminism", "bad_input_data", "bad_preprocessing"}
"""What no healthy batch can tell: a flipped bit, a NaN that a later sample brings."""
CONTROL_BATCHES = 24
BARS = {"predicted": 0.75, "line": 0.65}
MOST_FALSE = 0.05


@dataclass(frozen=True)
class Foresight:
    """What was said of one training."""

    entry: Entry
    report: CheckReport | None
    seconds: float
    error: str = ""

    @property
    def executed(self) -> list[Finding]:
        """What was predicted by running it, and is shown as a problem."""
        found = self.report.findings if self.report is not None else ()
        return [f for f in found if f.is_problem and f.data.get("is_executed")]

    @property
    def predicted(self) -> bool:
        return bool(self.executed)

    @property
    def line(self) -> bool:
        truth = self.entry.truth
        if truth is not None and truth.line is None:
            return self.predicted  # a setting has no line
        return truth is not None and any(
            f.location is not None
            and f.location.file is not None
            and os.path.samefile(f.location.file, self.entry.path)
            and f.location.line == truth.line
            for f in self.executed
        )

    @property
    def cause(self) -> bool:
        return any(f.cause == self.entry.truth.cause for f in self.executed if self.entry.truth)


def foresee(entry: Entry, fixed: bool = False) -> Foresight:
    """One training, checked with the batches that came before its failing step."""
    number = entry.truth.step if entry.truth is not None else CONTROL_BATCHES
    build = entry.build_fixed if fixed else entry.build
    assert build is not None
    rng = torch.get_rng_state()
    made: list[Case] = []

    def start() -> dict[str, Any]:
        case = build()
        made.append(case)
        return {
            "model": case.model, "loss_fn": case.loss_fn, "optimizer": case.optimizer,
            "loader": _batches(case, number), "scheduler": case.scheduler, "scaler": case.scaler,
            "clip_norm": case.clip_norm,
        }  # fmt: skip

    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report, error = check(start), ""
    except Exception as e:
        report, error = None, f"{type(e).__name__}: {e}".splitlines()[0]
    finally:
        for case in made:
            case.close()
        torch.set_rng_state(rng)
    return Foresight(entry, report, time.process_time() - begin, error)


def _batches(case: Case, number: int) -> list[Any]:
    """The first ones that its loop would take, over its epochs."""
    epochs = (case.loader for _ in range(case.epochs))
    return list(itertools.islice(itertools.chain.from_iterable(epochs), number))


def main(arguments: list[str]) -> int:
    """Exit code 0 when the bars are reached and false alarms are few."""
    parser = argparse.ArgumentParser(prog="python -m clinic.foresight")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--half", choices=SPLITS, default="dev")
    parser.add_argument("--silence", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    entries = [
        e
        for e in all_cases()
        if e.truth.split == args.half
        and e.truth.step > 0
        and (not args.names or any(n in e.name or n == e.truth.cause for n in args.names))
    ]
    scores = [_shown(foresee(e), args.verbose) for e in entries]
    is_good = _totals(args.half, scores)
    if args.silence:
        is_good = _silence(entries, args.verbose, bool(args.names)) and is_good
    return 0 if is_good else 1


def _shown(s: Foresight, verbose: bool) -> Foresight:
    marks = "   ".join("+" if m else "." for m in (s.predicted, s.line, s.cause))
    said = "; ".join(f"{f.status} {f.check} {f.subject} {f.cause}" for f in s.executed[:3])
    truth = s.entry.truth
    print(
        f"{s.entry.name:<38} {truth.cause:<26} {marks}  {s.seconds:>5.1f}  {said}{s.error}",
        flush=True,
    )
    if verbose and s.report is not None:
        for f in s.report.findings:
            if f.is_problem or f.data.get("is_executed"):
                print(f"      {f.status} {f.check} [{f.subject}] {f.value}")
    return s


def _totals(half: str, scores: list[Foresight]) -> bool:
    is_good = True
    for name, part in (
        ("all late failures", scores),
        ("foreseeable", [s for s in scores if s.entry.truth.cause not in UNSEEN]),
    ):
        cells = []
        for key in ("predicted", "line", "cause"):
            right = sum(getattr(s, key) for s in part)
            is_good = is_good and right >= BARS.get(key, 0.0) * len(part)
            cells.append(f"{key} {right}/{len(part)} {right / max(1, len(part)):.0%}")
        times = sorted(s.seconds for s in part) or [0.0]
        print(
            f"{half} {name}: {', '.join(cells)}; CPU seconds: median "
            f"{times[len(times) // 2]:.1f}, most {times[-1]:.1f}"
        )
    return is_good


def _silence(entries: Iterable[Entry], verbose: bool, has_names: bool) -> bool:
    """Fixed twins and controls: executed warnings are few, and none is called a fail."""
    groups = [(True, list(entries)), (False, [] if has_names else all_controls())]
    total, warned, failed, any_warning = 0, [], [], 0
    for fixed, group in groups:
        for entry in group:
            s = foresee(entry, fixed)
            total += 1
            any_warning += bool(s.report and any(f.is_problem for f in s.report.findings))
            if s.error:
                failed.append(f"{entry.name}: {s.error}")
            for f in s.executed:
                (failed if f.status == "fail" else warned).append(
                    f"{entry.name}: {f.status} {f.check} [{f.subject}] {f.value}"
                )
    names = {line.partition(":")[0] for line in (*warned, *failed)}
    print(
        f"\nexecuted warnings on {len(names)} of {total} fixed twins and controls; any warning on {any_warning}"
    )
    for line in (*failed, *warned):
        print(f"  {line}")
    return len(names) <= MOST_FALSE * total and not failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""stayfinite beside detect_anomaly, DebugUnderflowOverflow and torchlens, in one run.

    python -m benchmarks.compare [--every N] [--rounds N]     # pip install 'stayfinite[compare]'

First what each costs while nothing is wrong, timed pair by pair beside the plain loop; torchlens comes
last, because it wraps torch's functions for the whole process. Then what each of them says of the
clinic's broken trainings (step and line are known), and of their repaired twins, where any word is a
false alarm. A tool that is not installed is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from clinic.form import Entry, all_cases
from clinic.measure import run
from clinic.peers import (
    ForwardAndLoss,
    PeerScore,
    debug_underflow_overflow,
    detect_anomaly,
    torchlens,
)

from benchmarks.models import WORKLOADS
from benchmarks.overhead import measure


def stayfinite(entry: Entry) -> PeerScore:
    """`guard.step` on the same case."""
    score = run(entry, "step")
    return PeerScore(score.noticed, line=score.noticed and score.line)


TOOLS: dict[str, Callable[[Entry], PeerScore | None]] = {
    "stayfinite": stayfinite,
    "detect_anomaly": detect_anomaly,
    "DebugUnderflowOverflow": debug_underflow_overflow,
    "torchlens find_nan": torchlens,
}


def say(entries: list[Entry]) -> None:
    """What each tool says of the cases that have a line to name, and of their repaired twins."""
    print(f"\n{len(entries)} broken trainings and their repaired twins")
    print(f"  {'tool':<24} {'noticed':>8} {'line':>6} {'false alarms':>13} {'s a case':>9}")
    for name, tool in TOOLS.items():
        start = time.perf_counter()
        found = [score for entry in entries if (score := tool(entry)) is not None]
        if not found:
            print(f"  {name:<24} left out: it is not installed")
            continue
        seconds = (time.perf_counter() - start) / len(found)
        noticed, lines = (sum(bool(getattr(f, key)) for f in found) for key in ("noticed", "line"))
        false = sum(_alarms(name, e) for e in entries)
        print(f"  {name:<24} {noticed:>8} {lines:>6} {false:>13} {seconds:>9.2f}", flush=True)


def _alarms(name: str, entry: Entry) -> bool:
    if name == "stayfinite":
        return run(entry, "step", fixed=True).num_incidents > 0
    assert entry.build_fixed is not None
    score = TOOLS[name](replace(entry, build=entry.build_fixed))
    return score is not None and score.noticed


def torchlens_cost(key: str, rounds: int) -> None:
    """`find_nan` on one step's forward and loss, in plain steps; it is made to look once."""
    try:
        from torchlens.debug import find_nan
    except ImportError:
        return
    w = WORKLOADS[key]()
    step, optimizer = ForwardAndLoss(w), w.optimizer()
    ratios, has_found = [], False
    for i in range(rounds + 1):
        batch = w.batches[i % len(w.batches)]
        start = time.perf_counter()
        optimizer.zero_grad()
        w.loss_fn(w.model, batch).backward()
        optimizer.step()
        middle = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            has_found = find_nan(step, [batch]).found or has_found
        ratios.append((time.perf_counter() - start) / (middle - start))
    note = "; it reports a NaN or Inf in these healthy steps" if has_found else ""
    print(f"  {'torchlens find_nan':<26} {'':>8} {statistics.median(ratios[1:]):7.3f}{note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every Nth case")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of each variant")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for workload in ("a", "b"):
        measure(workload, args.rounds, peers=True)
    for workload in ("a", "b"):
        print(f"\n{WORKLOADS[workload]().name}, with torchlens")
        torchlens_cost(workload, args.rounds)
    say([e for e in all_cases() if e.truth is not None and e.truth.line is not None][:: args.every])


if __name__ == "__main__":
    main()

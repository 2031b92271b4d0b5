"""What do snapshots, spikes, probes and the save gate cost?

    python -m benchmarks.recovery [a b]

Snapshots and deep checks are timed inside a training at the default settings: their share of the
whole is compared with the budget. Everything else is timed by itself.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import WORKLOADS, Workload
from stayfinite import Guard, Policy, probe, save_gate
from stayfinite.config import Settings
from stayfinite.detect import SpikeWatch
from stayfinite.recover.snapshot import DiskSnapshot

BUDGET = Settings().budget
SECONDS = 12.0


class _Timed:
    """Sums up the time spent in some methods of an object."""

    def __init__(self) -> None:
        self.total = 0.0
        self.calls = 0
        self._depth = 0

    def wrap(self, home: Any, name: str) -> None:
        original = getattr(home, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            self._depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.total += time.perf_counter() - start
                    self.calls += 1

        setattr(home, name, timed)


def share_of_snapshots(w: Workload) -> tuple[float, int, int]:
    """(share of the time, snapshots, steps) of deep checks and snapshots in a training."""
    guard = Guard(w.model, w.optimizer())
    guard.step(w.loss_fn, w.batches[0])  # the first snapshot allocates; it is made once
    timed, taken = _Timed(), _Timed()
    timed.wrap(guard.engine.deep_checks, "run")
    taken.wrap(guard.state, "take_snapshot")
    timed.wrap(guard.state, "take_snapshot")
    timed.wrap(guard.state, "is_still_finite")
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        guard.step(w.loss_fn, w.batches[steps % len(w.batches)])
        steps += 1
    elapsed = time.perf_counter() - start
    guard.close()
    return timed.total / elapsed, taken.calls, steps


def rollback_ms(w: Workload) -> float:
    """One rollback, from the incident to the restored state."""
    guard = Guard(w.model, w.optimizer(), policy=Policy(name="rollback"))
    for i in range(4):
        guard.step(w.loss_fn, w.batches[i % len(w.batches)])
    found = []
    for _ in range(5):
        start = time.perf_counter()
        guard.state.snapshot.restore()
        found.append((time.perf_counter() - start) * 1e3)
    guard.close()
    return statistics.median(found)


def disk_ms(w: Workload, folder: Path) -> float:
    """One snapshot in a file, fsync and rename included."""
    guard = Guard(w.model, w.optimizer())
    guard.step(w.loss_fn, w.batches[0])
    guard.state.snapshot = DiskSnapshot(folder / "snapshot.pt")
    found = [guard.state.take_snapshot(i) * 1e3 for i in range(5)]
    guard.close()
    return statistics.median(found)


def gate_ms(w: Workload, folder: Path) -> tuple[float, float]:
    """(plain, gated) `torch.save` of a whole checkpoint."""
    optimizer = w.optimizer()
    w.loss_fn(w.model, w.batches[0]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    state = {"model": w.model.state_dict(), "optimizer": optimizer.state_dict()}

    def save() -> None:
        torch.save(state, folder / "a.pt")

    plain, gated = [], []
    for _ in range(7):
        plain.append(_once(save))
        with save_gate():
            gated.append(_once(save))
    return statistics.median(plain) * 1e3, statistics.median(gated) * 1e3


def _once(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_call_ns(call: Callable[[], Any], count: int = 200_000) -> float:
    """Of a very small call, the loop round it included."""
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - start) / count * 1e9)
    return min(rounds)


def main() -> None:
    torch.set_num_threads(1)
    names = [a for a in sys.argv[1:] if a in WORKLOADS] or ["a", "b"]
    is_over = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for key in names:
            w = WORKLOADS[key]()
            size = sum(p.numel() for p in w.model.parameters()) / 1e6
            print(f"{w.name} ({size:.2f} M parameters)")
            share, snapshots, steps = share_of_snapshots(w)
            is_over |= share > BUDGET
            print(
                f"  deep checks and snapshots  {share:.2%} of {steps} steps ({snapshots} snapshots)"
            )
            print(f"  going back to a snapshot   {rollback_ms(w):.2f} ms")
            print(f"  a snapshot in a file       {disk_ms(w, folder):.1f} ms")
            plain, gated = gate_ms(w, folder)
            print(
                f"  torch.save                 {plain:.1f} ms plain, {gated:.1f} ms through the gate"
            )
    x, watch, step = torch.ones(4), SpikeWatch(), iter(range(10**9))
    print(f"probe(...) while healthy     {per_call_ns(lambda: probe('here', x)):.0f} ns")
    print(f"SpikeWatch.note              {per_call_ns(lambda: watch.note(next(step), 1.0)):.0f} ns")
    if is_over:
        sys.exit(1)


if __name__ == "__main__":
    main()

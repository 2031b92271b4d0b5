"""What does `stayfinite run` cost an unmodified script? Whole processes, the two kinds in alternation.

    python -m benchmarks.process [short medium long start memory repeated] [--pairs N]

Counted is the CPU time of the whole process, all its threads and children; shown is the median of the
ratios of neighbors, each kind first every other time. What starting costs is measured by a script that
trains nothing, and taken off the steps' times: it has a bar of its own. Ends with 1 if a figure is over
its bar. All of it takes about five minutes on an idle machine; on a busy one the figures of both kinds and
their ratio grow, since other processes empty the caches.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

_TRAIN = """
import sys, time, torch
width, depth, rows, steps, bad = (int(a) for a in sys.argv[1:6])
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(width, width)]
for _ in range(depth - 1):
    layers += [torch.nn.ReLU(), torch.nn.Linear(width, width)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = [torch.randn(rows, width) for _ in range(8)]
broken = torch.full((rows, width), float("nan"))
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (broken if bad and i % bad == bad - 1 else data[i % 8] for i in range(steps))
times = []
start = time.process_time()
for x in torch.utils.data.DataLoader(Stream(), batch_size=None):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    now = time.process_time()
    times.append(now - start)
    start = now
print(sum(times), *times)
"""


@dataclass(frozen=True)
class Load:
    """A model and a number of steps; `bad`: every so many batches one is not finite."""

    width: int
    depth: int
    rows: int
    steps: int
    bad: int = 0

    def arguments(self) -> list[str]:
        return [str(n) for n in (self.width, self.depth, self.rows, self.steps, self.bad)]


LOADS = {
    "short": (Load(128, 3, 80, 5000), 1.05),
    "medium": (Load(512, 3, 64, 800), 1.02),
    "long": (Load(1536, 3, 256, 45), 1.01),
}
NOTHING = Load(8, 1, 1, 0)
BIG = Load(1024, 12, 32, 40)
MAX_START_SECONDS = 0.3
MAX_MEMORY, MAX_MEMORY_WITH_INCIDENT = 1.25, 1.5
MAX_REPEATED_STEPS = 1.5


@dataclass(frozen=True)
class Used:
    """What a process has used."""

    cpu: float
    memory: float
    """Megabytes at the most."""
    steps: list[float]
    """CPU seconds of each step of the loop, with what lies between."""


def run(load: Load, is_guarded: bool) -> Used:
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "train.py"
        script.write_text(_TRAIN)
        before = ["-m", "stayfinite", "run"] if is_guarded else []
        process = subprocess.Popen(
            [sys.executable, *before, script.name, *load.arguments()], cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode:
            raise SystemExit(f"the script ended with {process.returncode}")
    steps = [float(t) for t in out.split()[1:]]
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, steps)


def pairs(load: Load, count: int) -> list[tuple[Used, Used]]:
    """(plain, guarded), one right after the other."""
    found = []
    for i in range(count):
        if i % 2:
            plain, guarded = run(load, False), run(load, True)
        else:
            guarded, plain = run(load, True), run(load, False)
        found.append((plain, guarded))
    return found


@functools.cache
def starts(count: int) -> list[tuple[Used, Used]]:
    return pairs(NOTHING, count)


def verdict(name: str, text: str, figure: float, bar: float) -> bool:
    is_ok = figure <= bar
    note = "ok" if is_ok else "over the bar"
    print(f"  {name:<26} {text:<46} {figure:8.3f}  bar {bar:.2f}  {note}", flush=True)
    return is_ok


def steps(name: str, count: int) -> bool:
    """The ratio of CPU times, without what starting costs."""
    load, bar = LOADS[name]
    plain_start = statistics.median(p.cpu for p, _ in starts(count))
    guarded_start = statistics.median(g.cpu for _, g in starts(count))
    found = pairs(load, count)
    ratio = statistics.median((g.cpu - guarded_start) / (p.cpu - plain_start) for p, g in found)
    usual = statistics.median(p.cpu - plain_start for p, _ in found) / load.steps * 1e3
    return verdict(
        f"{name} steps", f"{usual:.2f} ms each, {load.steps} of them, {count} pairs", ratio, bar
    )


def start(_: str, count: int) -> bool:
    found = starts(count)
    more = statistics.median(g.cpu - p.cpu for p, g in found)
    usual = statistics.median(p.cpu for p, _ in found)
    return verdict(
        "start", f"seconds more than {usual:.2f}, {count} pairs", more, MAX_START_SECONDS
    )


def memory(_: str, count: int) -> bool:
    oks = []
    for what, bad, bar in (
        ("healthy", 0, MAX_MEMORY),
        ("an incident", 30, MAX_MEMORY_WITH_INCIDENT),
    ):
        load = Load(BIG.width, BIG.depth, BIG.rows, BIG.steps, bad)
        found = pairs(load, max(2, count // 4))
        ratio = statistics.median(g.memory / p.memory for p, g in found)
        usual = statistics.median(p.memory for p, _ in found)
        oks.append(verdict(f"peak memory, {what}", f"times {usual:.0f} MB", ratio, bar))
    return all(oks)


def repeated(_: str, count: int) -> bool:
    """The same bad batch again and again: after the first it is counted, and costs no more than steps."""
    load = Load(512, 3, 64, 400, bad=10)
    found = []
    for _ in range(max(3, count // 4)):
        used = run(load, True)
        usual = statistics.median(used.steps)
        again = [t for i, t in enumerate(used.steps) if i % 10 == 9][1:]
        # A step's time ends with the step: what follows from it is in the next one's.
        behind = [t for i, t in enumerate(used.steps) if i % 10 == 0][2:]
        found.append((statistics.median(again) + statistics.median(behind) - usual) / usual)
    return verdict(
        "an incident again", "normal steps", statistics.median(found), MAX_REPEATED_STEPS
    )


MEASURES: dict[str, Callable[[str, int], bool]] = {
    **dict.fromkeys(LOADS, steps),
    "start": start,
    "memory": memory,
    "repeated": repeated,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measures", nargs="*", default=list(MEASURES))
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    found = [MEASURES[name](name, args.pairs) for name in args.measures]
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()

"""What the journal costs, and how fast a long one becomes a page.

    python -m benchmarks.journal            # two million steps
    python -m benchmarks.journal 200000

Times are CPU seconds beside wall seconds: on a shared machine only the first say something.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from stayfinite.report.journal import Journal
from stayfinite.report.thinning import segment_paths

__all__ = ["long_journal", "report_cost"]

_REPORT = """
import json, resource, sys, time
wall = time.perf_counter()
from pathlib import Path
from stayfinite.report.html import render_html
from stayfinite.report.model import load_run
page = render_html(load_run(sys.argv[1]))
Path(sys.argv[2]).write_text(page)
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: that one still counts the parent's pages from before the exec.
(peak,) = [int(t.split()[1]) for t in open("/proc/self/status") if t.startswith("VmHWM")]
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": used.ru_utime + used.ru_stime,
                  "peak_mb": peak / 1024, "page_mb": len(page) / 1e6}))
"""


def append_cost(values: str, num_steps: int = 200_000) -> float:
    """Microseconds of CPU time a step, flushing included."""
    loss, norm = (0.7, 1.3) if values == "floats" else (torch.tensor(0.7), torch.tensor(1.3))
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        start = time.process_time()
        for step in range(num_steps):
            journal.append((step, 0, loss, norm, (0.001,), None, True))
        journal.flush()
        spent = time.process_time() - start
        journal.close()
    return spent / num_steps * 1e6


def long_journal(folder: Path, num_steps: int) -> None:
    """A run that learns, with a NaN now and then."""
    journal = Journal(folder / "journal.jsonl", about={"script": "train.py"})
    nan = float("nan")
    for step in range(num_steps):
        is_bad = step % 200_000 == 100_000
        loss = nan if is_bad else 2.0 / (1 + step * 1e-4) + (step % 17) * 1e-3
        rate = (1e-3 * (1 - step / num_steps),)
        journal.append((step, step // 10_000, loss, 1.0 + step % 13, rate, 65536.0, not is_bad))
        if step % 20_000 == 0:
            journal.event(
                "layers", step=step, names=["a", "b"], dtypes=["float32", "float16"],
                weight=[1.0, 2.0 + step / 100], grad=[0.1, 0.2], update=[1e-3, 1e-3], grad_norm=0.2,
            )  # fmt: skip
    journal.close()


def report_cost(folder: Path) -> dict[str, float]:
    """The page of that run, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _REPORT, str(folder), str(folder / "report.html")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def main() -> None:
    num_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    for values in ("floats", "tensors"):
        best = min(append_cost(values) for _ in range(3))
        print(f"append, {values}: {best:.2f} us a step (CPU, best of 3, flushes included)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start, cpu = time.perf_counter(), time.process_time()
        long_journal(folder, num_steps)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        size = sum(p.stat().st_size for p in segment_paths(folder / "journal.jsonl")) / 1e6
        files = len(segment_paths(folder / "journal.jsonl"))
        print(
            f"{num_steps:,} steps journaled: {cpu / num_steps * 1e6:.2f} us a step CPU, "
            f"{wall / num_steps * 1e6:.2f} us wall; {size:.0f} MB in {files} files"
        )
        cost = report_cost(folder)
        print(
            f"report: {cost['cpu_s']:.1f} s CPU, {cost['wall_s']:.1f} s wall, peak "
            f"{cost['peak_mb']:.0f} MB, page {cost['page_mb']:.2f} MB"
        )


if __name__ == "__main__":
    main()

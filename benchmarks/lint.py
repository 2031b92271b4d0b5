"""How fast lint reads, and how often it speaks: `python -m benchmarks.lint PATH ...`.

The lines of a second are of processor time of one core; wall-clock time is of all of them. Give it the unpacked
sources of libraries; without a path it reads torch.nn.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from pathlib import Path

from stayfinite.lint import Report, lint_paths


def main(paths: list[str]) -> None:
    """One table row for each path."""
    print(
        f"{'path':<20} {'files':>6} {'lines':>10} {'wall s':>7} {'lines/cpu s':>11} {'found':>6} {'in 10,000':>9}"
    )
    total: Counter[str] = Counter()
    for path in paths or [str(_torch_nn())]:
        before, start = _cpu(), time.perf_counter()
        report = lint_paths([path])
        wall, cpu = time.perf_counter() - start, _cpu() - before
        print(_row(Path(path).name, report, wall, cpu))
        total.update(f.code for f in report.findings)
    print("codes: " + (", ".join(f"{code} {n}" for code, n in sorted(total.items())) or "none"))


def _row(name: str, report: Report, wall: float, cpu: float) -> str:
    found = len(report.findings)
    share = 1e4 * found / max(1, report.num_lines)
    return (
        f"{name:<20} {report.num_files:>6,} {report.num_lines:>10,} {wall:>7.1f} "
        f"{report.num_lines / max(cpu, 1e-9):>11,.0f} {found:>6} {share:>9.2f}"
    )


def _cpu() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    mine, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime


def _torch_nn() -> Path:
    import torch.nn

    return Path(torch.nn.__file__).parent


if __name__ == "__main__":
    main(sys.argv[1:])

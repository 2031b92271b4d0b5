"""What `stayfinite check` costs on a transformer of 10.7 million parameters: at most 60 of its own steps.

python -m benchmarks.preflight [--groups] [--batch N]

Processor time of the command and of all that it starts, against that of a plain run, before and after it.
`--groups` also says what the groups take by themselves. Starting costs a fixed time (torch is imported twice),
so small steps make it more of them.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "gpt.py"
LIMIT_STEPS = 60
_FEW, _MORE = 4, 16
_GROUPS = ("environment,config,data,init", "forward", "edges", "precision", "stability")


def used(*command: str) -> float:
    """Seconds of processor time that a command takes, with all of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def step_seconds(batch: str) -> float:
    """What a step takes in a plain run, its start left out."""
    script = (str(SCRIPT), "--batch", batch)
    few, more = (used(*script, "--steps", str(n)) for n in (_FEW, _MORE))
    return (more - few) / (_MORE - _FEW)


def largest_mb() -> float:
    """The most memory that any process so far has held."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main(arguments: list[str]) -> int:
    """Exit code 0 when the limit is kept."""
    batch = arguments[arguments.index("--batch") + 1] if "--batch" in arguments else "32"
    checked = (str(SCRIPT), "--batch", batch)
    first, plain_mb = step_seconds(batch), largest_mb()
    seconds = used("-m", "stayfinite", "check", *checked)
    check_mb = largest_mb()
    step = (first + step_seconds(batch)) / 2
    print(
        f"{batch} sequences: a step of a plain run: {step:.3f} s of processor time, at most {plain_mb:,.0f} MB"
    )
    print(
        f"stayfinite check: {seconds:.1f} s, {seconds / step:.0f} steps (limit {LIMIT_STEPS}), "
        f"the largest process {check_mb:,.0f} MB"
    )
    for group in _GROUPS if "--groups" in arguments else ():
        alone = used("-m", "stayfinite", "check", "--only", group, *checked)
        print(f"  --only {group}: {alone:.1f} s, {alone / step:.0f} steps")
    return 0 if seconds <= LIMIT_STEPS * step else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Do the five examples train with the diffs that `stayfinite fix` writes? Each broken training is run under
stayfinite, its proved diff applied, and the training run once more by itself.

    python -m clinic.example_fixes [NAME ...] [--rounds N]

A training that is repaired at one line may show the next fault: run, fix and train are repeated up to N times
(default 3). The last line of the fixed twin is printed beside it.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from stayfinite.demo.cases import Case, find

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


def main(arguments: list[str]) -> int:
    """Exit code 0 when every training reaches the metric of its fixed twin."""
    rounds = int(arguments[arguments.index("--rounds") + 1]) if "--rounds" in arguments else 3
    names = [a for a in arguments if not a.startswith("-") and not a.isdigit()]
    folders = sorted(p.parent for p in EXAMPLES.glob("*/demo.yaml"))
    results = [check(f, rounds) for f in folders if not names or f.name in names]
    print(f"\n{sum(results)} of {len(results)} reach the metric of their fixed twin")
    return 0 if all(results) else 1


def check(folder: pathlib.Path, rounds: int) -> bool:
    """Whether the example's own training, with what was proved, reaches the metric."""
    case = find(folder.name)
    print(f"== {case.name}", flush=True)
    with tempfile.TemporaryDirectory() as home:
        place = pathlib.Path(home) / folder.name
        shutil.copytree(folder, place)
        for number, last in enumerate(fixed_by_diff(place, rounds), start=1):
            print(f"   round {number}: {last}", flush=True)
            if re.search(case.metric, last) and "nan" not in last.lower():
                print(f"   fixed twin: {_twin(case, home)}", flush=True)
                return True
    return False


def fixed_by_diff(place: pathlib.Path, rounds: int, extra: Sequence[str] = ()) -> Iterator[str]:
    """The last line of the training by itself, each time the proved diff of a run is written to `place`.

    Every round begins in a folder without what the one before has left.
    """
    for number in range(1, rounds + 1):
        if not _fixed(place, extra, number):
            return
        yield _last_line(place, ["train.py", *extra])
        for name in ("results", "checkpoints"):
            shutil.rmtree(place / name, ignore_errors=True)


def _fixed(place: pathlib.Path, args: Sequence[str], number: int) -> bool:
    """The broken training under stayfinite, and its proved diff written."""
    run = f"run-{number}"
    _stayfinite(place, "run", "--run-dir", run, "train.py", *args)
    written = _stayfinite(place, "fix", run, "--apply")
    for line in written.splitlines():
        if line.startswith(("+", "-")) or "[proved]" in line:
            print(f"   {line}", file=sys.stderr)
    return "was changed" in written


def _twin(case: Case, home: str) -> str:
    twin = pathlib.Path(home) / "twin"
    shutil.copytree(case.script.parent, twin)
    return _last_line(twin, [case.fixed.name, *case.fixed_args])


def _last_line(place: pathlib.Path, command: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=place, capture_output=True, text=True, check=False
    )
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _stayfinite(place: pathlib.Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite", *command],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

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

import yaml

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
    demo = yaml.safe_load((folder / "demo.yaml").read_text(encoding="utf-8"))
    print(f"== {folder.name}", flush=True)
    with tempfile.TemporaryDirectory() as home:
        place = pathlib.Path(home) / folder.name
        for number in range(1, rounds + 1):
            fresh = pathlib.Path(home) / f"round{number}"
            shutil.copytree(folder if number == 1 else place, fresh)
            if not _fixed(fresh, demo, number):
                break
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(
                fresh, place, ignore=shutil.ignore_patterns("run-*", "results", "checkpoints")
            )
            last = _last_line(fresh, ["train.py", *demo["plain"]])
            is_reached = bool(re.search(demo["metric"], last)) and "nan" not in last.lower()
            print(f"   round {number}: {last}", flush=True)
            if is_reached:
                print(f"   fixed twin: {_twin(folder, home, demo)}", flush=True)
                return True
    return False


def _fixed(place: pathlib.Path, demo: dict[str, object], number: int) -> bool:
    """The broken training under stayfinite, and its proved diff written."""
    run = f"run-{number}"
    plain = [str(a) for a in demo["plain"]]  # type: ignore[attr-defined]
    _stayfinite(place, "run", "--run-dir", run, "train.py", *plain)
    shown = _stayfinite(place, "fix", run)
    for line in shown.splitlines():
        if line.startswith(("+", "-")) or "[proved]" in line:
            print(f"   {line}")
    written = _stayfinite(place, "fix", run, "--apply")
    return "was changed" in written


def _twin(folder: pathlib.Path, home: str, demo: dict[str, object]) -> str:
    twin = pathlib.Path(home) / "twin"
    shutil.copytree(folder, twin)
    fixed: dict[str, object] = demo["fixed"]  # type: ignore[assignment]
    return _last_line(twin, [str(fixed["script"]), *map(str, fixed["args"])])  # type: ignore[call-overload]


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

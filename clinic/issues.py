"""Whole scripts in the style of public issues: run, read, repaired by what `stayfinite fix` writes, and trained again.

    python -m clinic.issues [NAME ...] [--rounds N]

Each script of `clinic/scripts` is copied and run under `stayfinite run`; the first incident is held against
`truths.yaml` (cause, line); its proved diff is applied, and the script is run by itself to its end, beside its
authors' repair. A script that shows another fault then is run and repaired up to N times (default 2).
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

import yaml

SCRIPTS = pathlib.Path(__file__).with_name("scripts")
_ROOM = 0.3


@dataclass
class Result:
    """What was right for one script."""

    name: str
    cause: str | None = None
    line: str | None = None
    is_cause: bool = False
    is_line: bool = False
    remedies: list[str] = field(default_factory=list)
    mine: float = math.nan
    twin: float = math.nan

    @property
    def has_diff(self) -> bool:
        return bool(self.remedies)

    @property
    def holds(self) -> bool:
        """Whether the repaired script ends no worse than its authors' repair does."""
        room = _ROOM * abs(self.twin) + 0.05
        return math.isfinite(self.mine) and self.mine <= self.twin + room


def check(name: str, truth: dict[str, Any], rounds: int) -> Result:
    """One script, from the failure to the training that is repaired."""
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    result = Result(name)
    with tempfile.TemporaryDirectory() as home:
        result.twin = _twin(pathlib.Path(home), name, text, truth["fixed"])
        place = pathlib.Path(home) / name
        place.mkdir()
        (place / "train.py").write_text(text, encoding="utf-8")
        for number in range(1, rounds + 1):
            _stayfinite(place, "run", "--run-dir", f"run{number}", "train.py")
            incident = _first(place / f"run{number}")
            if incident is None:
                break
            if number == 1:
                _judge(result, incident, truth, text)
            fixes = incident["diagnosis"]["fixes"]
            proved = [f for f in fixes if f["status"] == "proved" and f.get("diff")]
            if not proved:
                break
            written = _stayfinite(place, "fix", f"run{number}", "--apply")
            if "was changed" not in written:
                break
            result.remedies.append(str(proved[0]["remedy"]))
            result.mine = _final(place, "train.py")
            if result.holds:
                break
    return result


def _judge(result: Result, incident: dict[str, Any], truth: dict[str, Any], text: str) -> None:
    place = incident["location"]
    result.cause = incident["diagnosis"]["cause"]
    result.is_cause = result.cause in truth["causes"]
    lines = text.splitlines()
    numbers = [place.get("line"), (place.get("culprit") or {}).get("line")]
    shown = [lines[n - 1] for n in numbers if n and n <= len(lines)]
    result.line = shown[0].strip() if shown else None
    wanted = truth["lines"]
    result.is_line = None in wanted or any(w in s for w in wanted for s in shown)


def _twin(home: pathlib.Path, name: str, text: str, replaced: list[list[str]]) -> float:
    for old, new in replaced:
        text = text.replace(old, new)
    (home / f"{name}_fixed.py").write_text(text, encoding="utf-8")
    return _final(home, f"{name}_fixed.py")


def _first(run: pathlib.Path) -> dict[str, Any] | None:
    found = sorted(run.glob("**/incident*.json"))
    read = [json.loads(p.read_text(encoding="utf-8")) for p in found]
    read = [r for r in read if isinstance(r, dict) and "diagnosis" in r]
    return min(read, key=lambda r: r["event"]["step"], default=None)


def _final(place: pathlib.Path, script: str) -> float:
    done = subprocess.run(
        [sys.executable, script], cwd=place, capture_output=True, text=True, check=False
    )
    found = re.findall(r"final loss (\S+)", done.stdout)
    return float(found[-1]) if found else math.nan


def _stayfinite(place: pathlib.Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stayfinite", *command],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    """Exit code 0 when every proved diff holds."""
    rounds = int(arguments[arguments.index("--rounds") + 1]) if "--rounds" in arguments else 2
    names = [a for a in arguments if not a.startswith("-") and not a.isdigit()]
    truths = yaml.safe_load((SCRIPTS / "truths.yaml").read_text(encoding="utf-8"))
    results = []
    print(f"{'script':<22} cause line diff holds  {'mine':>9} {'twin':>9}  found, changed")
    for name, truth in truths.items():
        if names and not any(n in name for n in names):
            continue
        r = check(name, truth, rounds)
        results.append(r)
        marks = "     ".join(
            "+" if m else "." for m in (r.is_cause, r.is_line, r.has_diff, r.holds)
        )
        what = f"{r.cause} | {r.line} | {', '.join(r.remedies)}"
        print(f"{name:<22} {marks:<22} {r.mine:>9.4g} {r.twin:>9.4g}  {what}", flush=True)
    total = len(results)
    for word, number in (
        ("causes", sum(r.is_cause for r in results)),
        ("lines", sum(r.is_line for r in results)),
        ("proved diffs", sum(r.has_diff for r in results)),
        ("end like the authors' repair", sum(r.holds for r in results)),
    ):
        print(f"{word}: {number} of {total}")
    return 0 if all(r.holds for r in results if r.has_diff) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

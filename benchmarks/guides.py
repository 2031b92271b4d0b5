"""Does each example go the whole way of its guide, whatever the seed? One table for all five.

    python -m benchmarks.guides [NAME ...] [--seeds 5] [--json FILE]

Each example with the seeds 1 to N: the training as it is prints NaN or Inf; `stayfinite check` names it
beforehand, and (seed 1) nothing in the repaired twin; under `stayfinite run` an incident names the cause and the line; then
`stayfinite fix --apply` and the training again (up to three rounds: behind one fault may be the next). Where
that does not reach 90 % of the repaired twin's figure, the presets are tried (`benchmarks.presets`). The repaired
twin has to beat the baseline that it prints. With --json what is done already is not done again. About 2
minutes of computing for each example and seed. One thread each: with more, sums are rounded in another order from
run to run, and a training near its limit then fails a step earlier or later, plain or protected.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clinic.example_fixes import fixed_by_diff

from benchmarks.presets import ENOUGH, EXAMPLES, METRICS, row
from stayfinite.demo.cases import Case, find
from stayfinite.records import Incident

BASELINES = {
    "mmgcn": r"\(popularity ([\d.]+)\)  ndcg",
    "temi": r"\(chance ([\d.]+)\)",
    "restran_mhc": r"\(chance ([\d.]+)\)",
    "mmdit_dlm": r"usual word of each place: ([\d.]+)",
    "lstm_market": r"\(chance ([\d.]+)\)",
}
ROUNDS = 3
Row = dict[str, Any]


def figure(pattern: str, text: str) -> float:
    """The last one that the pattern finds; 0 where there is none."""
    found = re.findall(pattern, text)
    return float(found[-1]) if found else 0.0


def said(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout


def plain(case: Case, seed: list[str], folder: Path) -> Row:
    """As it is."""
    text = said(folder, "train.py", *seed)
    bad = [n for n, line in enumerate(text.splitlines()) if re.search(r"\b(nan|inf)\b", line)]
    return {"is_broken": bool(bad), "figure": figure(METRICS[case.name], text)}


def caught(case: Case, run: Path) -> Row:
    """The incident that names the cause and the line, and what else there was."""
    seen = [
        Incident.from_json(path.read_text(encoding="utf-8"))
        for path in sorted(run.glob("incidents/*/incident.json"))
    ]
    right = [
        i
        for i in seen
        if i.diagnosis.cause == case.cause and case.line in (i.location.source or "")
    ]
    return {
        "step": right[0].event.step if right else None,
        "op": right[0].location.op if right else None,
        "all": sorted({f"{i.diagnosis.cause} at {i.location.source}" for i in seen}),
    }


def checked(case: Case, seed: list[str], folder: Path, script: str) -> Row:
    """What `check` says beforehand."""
    text = said(folder, "-m", "stayfinite", "check", "--json", script, *seed)
    report = json.loads(text)
    found = [f for f in report["findings"] if f["status"] in ("fail", "warn")]
    at_line = [f["status"] for f in found if case.line in json.dumps(f)]
    return {
        "verdict": report["verdict"],
        "at_line": min(at_line, default=""),  # "fail" before "warn"
        "found": [f"{f['status']} {f['check']} {f['subject']}" for f in found],
    }


def repaired(case: Case, seed: list[str], folder: Path) -> Row:
    """The twin that somebody has repaired by hand."""
    text = said(folder, case.fixed.name, *case.fixed_args, *seed)
    return {
        "figure": figure(METRICS[case.name], text),
        "baseline": figure(BASELINES[case.name], text),
    }


def by_fix(case: Case, seed: list[str], folder: Path, wanted: float) -> Row:
    """What `stayfinite run` says of it, and what `stayfinite fix --apply` makes of it."""
    figures = []
    for last in fixed_by_diff(folder, ROUNDS, seed):
        figures.append(figure(METRICS[case.name], last))
        if figures[-1] >= wanted:
            break
    return {"figures": figures, **caught(case, folder / "run-1")}


def one(name: str, seed: int, known: Row, note: Callable[[], None]) -> Row:
    """All of it for one example and seed; each part that is not known yet is noted when it is."""
    case, given = find(name), ["--seed", str(seed)]

    def part(key: str, call: Callable[[Path], Row]) -> Row:
        if key not in known:
            with tempfile.TemporaryDirectory() as home:
                folder = Path(home) / name
                shutil.copytree(EXAMPLES / name, folder)
                known[key] = call(folder)
            note()
            print(f"{name} seed {seed} {key}: {known[key]}", file=sys.stderr, flush=True)
        return known[key]

    twin = part("repaired", lambda f: repaired(case, given, f))
    part("plain", lambda f: plain(case, given, f))
    part("check", lambda f: checked(case, given, f, "train.py"))
    if seed == 1:  # the seed changes little of what could be said against it
        part("check_repaired", lambda f: checked(case, given, f, case.fixed.name))
    wanted = ENOUGH * twin["figure"]
    diff = part("fix", lambda f: by_fix(case, given, f, wanted))
    if max(diff["figures"], default=0.0) < wanted:
        for preset in ("conservative", "very-conservative"):
            found = part(
                preset,
                lambda f, p=preset: vars_of(row(name, p, seed, twin["figure"], f.parent)),
            )
            if found["metric"] >= wanted:
                break
    return known


def vars_of(found: Any) -> Row:
    return {"metric": found.metric, "code": list(found.code)}


def table(rows: dict[str, Row]) -> str:
    """Markdown."""
    lines = [
        "| example, seed | as it is | `check` | of the repaired | `run`: step | repaired | by `fix` | by a preset |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, r in rows.items():
        twin = r["repaired"]["figure"]
        share = lambda x, twin=twin: f"{x:.3f} ({x / twin:.0%})" if twin else f"{x:.3f}"  # noqa: E731
        presets = [
            f"{p}: {share(r[p]['metric'])}" for p in ("conservative", "very-conservative") if p in r
        ]
        at_line = f"{r['check']['at_line']} at the line" if r["check"]["at_line"] else ""
        cells = [
            key,
            "NaN or Inf" if r["plain"]["is_broken"] else "**finite**",
            at_line or r["check"]["verdict"],
            r["check_repaired"]["verdict"] if "check_repaired" in r else "",
            f"{r['fix']['step']}, {r['fix']['op']}" if r["fix"]["op"] else "**not so**",
            f"{twin:.3f} ({r['repaired']['baseline']:.3f})",
            share(max(r["fix"]["figures"])) if r["fix"]["figures"] else "no diff proved",
            "; ".join(presets) or "not needed",
        ]
        lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="rows that are known, and where new ones go")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    known: dict[str, Row] = {}
    if args.json is not None and args.json.exists():
        known = json.loads(args.json.read_text(encoding="utf-8"))

    def note() -> None:
        if args.json is not None:
            args.json.write_text(json.dumps(known, indent=1), encoding="utf-8")

    names = args.names or sorted(METRICS)
    keys = [(f"{name}, {seed}", name, seed) for seed in range(1, args.seeds + 1) for name in names]
    for key, name, seed in keys:
        one(name, seed, known.setdefault(key, {}), note)
    print(table({key: known[key] for key in sorted(k for k, _, _ in keys)}))


if __name__ == "__main__":
    main()

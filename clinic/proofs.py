"""Is a proved diff true? Each one is applied to a copy of the case's source, and the copy is trained to the end.

    python -m clinic.proofs [NAME ...] [--split dev|held_out] [--form step|loop] [--totals]

NAME picks cases by name or cause; --totals prints figures by cause and no case by name. What applies the diffs here
is `patch`, and what trains is the plain loop: neither knows of stayfinite.
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from clinic.form import SPLITS, Entry, all_cases
from clinic.measure import FORMS, run
from clinic.verify import run as train

NOT_IN_SOURCE = {"hardware_or_nondeterminism", "corrupt_checkpoint"}
"""Nothing in these trainings is to be repaired in a source."""


@dataclass(frozen=True)
class Result:
    """One proved diff, or none, of one case in one form."""

    entry: Entry
    form: str
    diff: str | None = None
    problem: str = ""
    is_checked: bool = True


def check(entry: Entry, form: str) -> list[Result]:
    """Every proved diff of a case, tried by hand; a result without a diff where there is none."""
    score = run(entry, form)
    fixes = score.incident.diagnosis.fixes if score.incident is not None else ()
    proved = [f.diff for f in fixes if f.status == "proved" and f.diff]
    if not proved:
        return [Result(entry, form, problem=score.error)]
    # A change of the loop that drives all cases is none of the case's own source.
    own = [d for d in proved if d.startswith(f"--- a/clinic/cases/{entry.path.name}")]
    return [
        Result(entry, form, d, problem_of(entry, d) if d in own else "", is_checked=d in own)
        for d in proved
    ]


def problem_of(entry: Entry, diff: str) -> str:
    """What is wrong with a training that has this diff; empty where it ends as its fixed twin does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / entry.path.name
        shutil.copy(entry.path, copy)
        patch = subprocess.run(
            ["patch", "--no-backup-if-mismatch", str(copy)],
            input=diff,
            text=True,
            capture_output=True,
            check=False,
        )
        if patch.returncode:
            return f"the diff does not apply: {patch.stdout.strip()}"
        try:
            losses, bad = train(_load(copy, entry.name).build)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            sys.modules.pop(f"changed_{entry.name}", None)
    if bad:
        return f"{bad[0]} is not finite at step {len(losses) - 1}"
    assert entry.build_fixed is not None
    fixed, _ = train(entry.build_fixed)
    return _compared(losses, fixed)


def _compared(losses: list[float], fixed: list[float]) -> str:
    """Learning like the twin: at its end no worse than the twin by a half of what the twin has moved."""
    if len(losses) < len(fixed) - 2:
        return f"{len(losses)} steps instead of {len(fixed)}"
    tail = max(1, len(fixed) // 5)
    mine, twin = sum(losses[-tail:]) / tail, sum(fixed[-tail:]) / tail
    moved = max(abs(max(fixed) - min(fixed)), abs(max(losses[:-tail] or losses) - min(losses)))
    room = 0.5 * moved + 0.1 * abs(twin) + 1e-3
    if math.isfinite(mine) and mine <= twin + room:
        return ""
    return f"ends at a loss of {mine:.4g}, the fixed twin at {twin:.4g}"


def _load(path: pathlib.Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"changed_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(arguments: list[str]) -> int:
    """Exit code 0 when everything that says proved holds."""
    torch.set_num_threads(1)
    names = [
        a for i, a in enumerate(arguments) if not a.startswith("-") and not _is_value(arguments, i)
    ]
    splits = [_option(arguments, "--split")] if "--split" in arguments else list(SPLITS)
    forms = [_option(arguments, "--form")] if "--form" in arguments else list(FORMS)
    is_quiet = "--totals" in arguments
    results = []
    for entry in all_cases():
        assert entry.truth is not None
        if entry.truth.split not in splits:
            continue
        if names and not any(n in entry.name or n == entry.truth.cause for n in names):
            continue
        for form in forms:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = check(entry, form)
            results += found
            if not is_quiet:
                _show(found)
    _totals(results)
    return 1 if any(r.diff and r.problem for r in results) else 0


def _is_value(arguments: list[str], index: int) -> bool:
    return index > 0 and arguments[index - 1] in ("--split", "--form")


def _option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def _show(found: list[Result]) -> None:
    for r in found:
        word = "none" if r.diff is None else ("WRONG" if r.problem else "holds")
        word = word if r.is_checked else "loop"
        cause = r.entry.truth.cause if r.entry.truth else ""
        print(f"{word:<6} {r.entry.name:<38} {r.form:<5} {cause:<26} {r.problem}", flush=True)


def _totals(results: list[Result]) -> None:
    for split in SPLITS:
        part = [r for r in results if r.entry.truth and r.entry.truth.split == split]
        if not part:
            continue
        with_diff = [r for r in part if r.diff and r.is_checked]
        holds = sum(not r.problem for r in with_diff)
        print(f"\n{split}: {holds} of {len(with_diff)} proved diffs hold")
        tried = {(r.entry.name, r.form): r for r in part if _cause(r) not in NOT_IN_SOURCE}
        count = sum(r.diff is not None for r in tried.values())
        print(f"{split}: {count} of {len(tried)} trainings have a proved diff", end="")
        print(f" ({count / max(1, len(tried)):.0%})")
        _by_cause(list(tried.values()), lambda r: r.diff is not None)
        wrong = Counter((_cause(r), _kind(r.problem)) for r in with_diff if r.problem)
        for (cause, kind), number in sorted(wrong.items()):
            print(f"  does not hold: {cause} {number} ({kind})")


def _kind(problem: str) -> str:
    """What is wrong, without the figures of the case."""
    kinds = ("not finite", "ends at a loss", "does not apply", "steps instead of")
    return next((k for k in kinds if k in problem), problem.partition(":")[0])


def _by_cause(results: list[Result], is_good: Callable[[Result], bool]) -> None:
    total = Counter(_cause(r) for r in results)
    good = Counter(_cause(r) for r in results if is_good(r))
    for cause, number in sorted(total.items()):
        print(f"  {cause:<28} {good[cause]}/{number}")


def _cause(result: Result) -> str:
    return result.entry.truth.cause if result.entry.truth else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

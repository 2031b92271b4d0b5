"""The clinic's late failures under shadow intervals: `python -m tests.foresee.on_clinic [--split dev] [NAME...]`.

Each case is given only the batches before its failing step. Its first step is captured; the box holds
the ranges of those batches, and the weights that as many steps can reach as the case takes.
"""

import argparse
import contextlib
import io
import itertools
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass

import torch
from clinic.form import Case, Entry, all_cases, all_controls

from stayfinite.foresee.capture import StepCapture
from stayfinite.foresee.intervals.analysis import judge
from stayfinite.foresee.intervals.box import batch_sizes_of, box_around, reach_of
from stayfinite.foresee.records import Verdict
from stayfinite.locate.modules import name_modules
from stayfinite.locate.notes import SourceRef
from stayfinite.runtime.batches import named_tensors


def judged(case: Case, num_batches: int) -> tuple[Verdict, ...]:
    """Verdicts from the first step of a case and the ranges of its first batches."""
    batches = list(
        itertools.islice(
            itertools.chain.from_iterable(itertools.repeat(case.loader, case.epochs)), num_batches
        )
    )
    parameters = dict(case.model.named_parameters())
    sources = [SourceRef("batch", n, t) for n, t in named_tensors(batches[0])]
    sources += [SourceRef("parameter", n, p) for n, p in parameters.items()]
    sources += [SourceRef("buffer", n, b) for n, b in case.model.named_buffers()]
    taken = StepCapture(sources, name_modules({"": case.model}))
    with taken:
        _step(case, batches[0])
    for batch in batches[1:]:
        for name, t in named_tensors(batch):
            taken.add_source(SourceRef("batch", name, t))
    names = {id(p): n for n, p in parameters.items()}
    reach = reach_of([case.optimizer], names, clip_norm=case.clip_norm)
    rows = {next((len(t) for _, t in named_tensors(b) if t.dim()), 0) for b in batches}
    sizes = batch_sizes_of([case.loader], rows)
    return judge(taken.capture, box_around(taken.capture, reach, sizes)).verdicts


def _step(case: Case, batch: object) -> None:
    case.optimizer.zero_grad()
    loss = case.loss_fn(case.model, batch)
    (loss if case.scaler is None else case.scaler.scale(loss)).backward()
    if case.scaler is not None:
        case.scaler.unscale_(case.optimizer)
    if case.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(case.model.parameters(), case.clip_norm)
    if case.scaler is not None:
        case.scaler.step(case.optimizer)
        case.scaler.update()
    else:
        case.optimizer.step()


@dataclass
class Score:
    name: str
    is_line: bool
    """The true line is among those that can fail."""
    is_forward_clean: bool
    num_flagged: int
    """Lines that can fail."""
    counts: Counter
    seconds: float
    error: str = ""
    flags: tuple[str, ...] = ()
    at_line: str = ""


def score(entry: Entry, is_fixed: bool, num_batches: int) -> Score:
    build = entry.build_fixed if is_fixed else entry.build
    start = time.process_time()
    found: tuple[Verdict, ...] = ()
    error = ""
    case = build()
    rng = torch.get_rng_state()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            found = judged(case, num_batches)
    except Exception as e:
        error = f"{type(e).__name__}: {e}".splitlines()[0]
    finally:
        case.close()
        torch.set_rng_state(rng)
    can = [v for v in found if v.status == "can_fail"]
    truth = entry.truth
    here = [
        v
        for v in found
        if truth and v.operation.line == truth.line and _is_same(v.operation.file, entry)
    ]
    lines = {(v.operation.file, v.operation.line) for v in can}
    return Score(
        entry.name,
        any(v.status == "can_fail" for v in here),
        not any(v.operation.phase == "forward" for v in can),
        len(lines),
        Counter(v.status for v in found),
        time.process_time() - start,
        error,
        tuple(
            sorted(
                {
                    f"{v.operation.line}: {v.operation.name} {v.condition} [{v.low}, {v.high}]"
                    for v in can
                }
            )
        ),
        "; ".join(sorted({f"{v.operation.name} {v.status} {v.condition}" for v in here}))[:300],
    )


def _is_same(file: str | None, entry: Entry) -> bool:
    return file is not None and os.path.exists(file) and os.path.samefile(file, entry.path)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--split", default="dev", choices=("dev", "held_out"))
    parser.add_argument("--show", action="store_true", help="Show what is flagged.")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    entries = [e for e in all_cases() if e.truth.split == given.split and e.truth.step > 0]
    entries = [e for e in entries if not given.names or any(n in e.name for n in given.names)]
    with_line = [e for e in entries if e.truth.line is not None and None not in e.truth.ops]
    late, twins = [], []
    for entry in entries:
        s = score(entry, False, entry.truth.step)
        late.append(s)
        mark = "line" if s.is_line else "." if entry in with_line else "no line to find"
        print(
            f"{entry.name:<42} {entry.truth.cause:<24} {mark:<16} {s.num_flagged:>3} lines {s.seconds:5.2f} s {s.error}"
        )
        if given.show:
            print(f"      truth line {entry.truth.line}: {s.at_line}")
            for flag in s.flags:
                print("        ", flag[:160])
        twins.append(score(entry, True, entry.truth.step))
    controls = [] if given.names else [score(e, False, 3) for e in all_controls()]
    names = {e.name for e in with_line}
    hits = sum(s.is_line for s in late if s.name in names)
    print(
        f"\n{given.split}: the true line can fail in {hits} of {len(with_line)} late failures that have one"
    )
    for what, group in (("fixed twins", twins), ("controls", controls)):
        flagged = [s for s in group if s.num_flagged]
        lines = sum(s.num_flagged for s in group)
        print(
            f"{what}: {len(flagged)} of {len(group)} have a line that can fail, {lines} lines in all"
        )
        for s in flagged if given.show else []:
            print("   ", s.name, *[f"\n         {f[:150]}" for f in s.flags])
        for s in group:
            if s.error:
                print("   ", s.name, s.error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

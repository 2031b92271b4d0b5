"""Safe operators against brute force: `python -m tests.foresee.soundness --count N --seed S`."""

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass

import torch
from tests.foresee.programs import COLUMNS, ROWS, Choose, Program, make_program
from torch.utils._python_dispatch import TorchDispatchMode

from stayfinite.foresee.capture import StepCapture
from stayfinite.foresee.intervals.analysis import ON_PURPOSE, judge
from stayfinite.foresee.intervals.box import Box
from stayfinite.foresee.records import Verdict
from stayfinite.locate.notes import SourceRef

NUM_SAMPLES = 12


@dataclass
class Inputs:
    floats: list[torch.Tensor]
    mask: torch.Tensor
    labels: torch.Tensor

    def sources(self) -> list[SourceRef]:
        named = [SourceRef("batch", f"x{i}", t) for i, t in enumerate(self.floats)]
        return [
            *named,
            SourceRef("batch", "mask", self.mask),
            SourceRef("batch", "labels", self.labels),
        ]


def run(program: Program, inputs: Inputs) -> None:
    for t in inputs.floats:
        t.requires_grad_(True)
        t.grad = None
    loss = program(inputs.floats, inputs.mask, inputs.labels)
    if loss.requires_grad:
        loss.backward()


def sample(program: Program, how: int, generator: torch.Generator) -> Inputs:
    """Inputs in the box: its corners, its edges, its middle, next to its ends, constant rows."""

    def between(low: float, high: float, shape: tuple[int, ...]) -> torch.Tensor:
        u = torch.rand(shape, generator=generator, dtype=torch.float64)
        if how == 0:
            u = torch.zeros_like(u)
        elif how == 1:
            u = torch.ones_like(u)
        elif how in (2, 3):
            u = u.round()
        elif how == 4:
            u = u[:, :1].expand(shape)
        elif how == 5:
            u = u[:1].expand(shape)
        elif how in (6, 7):
            u = u.pow(20)
        t = low + (high - low) * u
        if how in (8, 9) and low <= 0 <= high:
            t = torch.where(torch.rand(shape, generator=generator) < 0.5, 0.0, t)
        return t.clamp(low, high)

    shape = (ROWS, COLUMNS)
    floats = []
    for low, high in program.ranges:
        t = between(low, high, shape).to(program.dtype)
        floats.append(t.clamp(*bounds(program, (low, high))))
    mask = between(*program.mask, shape).round().bool()
    return Inputs(floats, mask, between(*program.labels, shape).round().long())


def bounds(program: Program, pair: tuple[float, float]) -> tuple[float, float]:
    """The box's ends as the dtype holds them."""
    low, high = (float(torch.tensor(v, dtype=torch.float64).to(program.dtype)) for v in pair)
    return low, high


def box_of(program: Program) -> Box:
    data = {f"x{i}": bounds(program, pair) for i, pair in enumerate(program.ranges)}
    return Box(data={**data, "mask": program.mask, "labels": program.labels})


class Watch(TorchDispatchMode):
    """Which operators gave something that is not finite, by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0
        self.names: list[str] = []
        self.bad: dict[int, bool] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func._schema.name.startswith("aten::"):
            return out
        tensors = out if isinstance(out, (list, tuple)) else [out]
        for t in tensors:
            if (
                isinstance(t, torch.Tensor)
                and t.is_floating_point()
                and not bool(t.isfinite().all())
            ):
                self.bad[self.num] = not bool(t.isnan().any()) and not bool((t == torch.inf).any())
        self.names.append(func._schema.name.replace("::", "."))
        self.num += 1
        return out


@dataclass(frozen=True)
class Wrong:
    """A safe operator that is not."""

    program: Program
    verdict: Verdict
    inputs: Inputs


def examine(
    program: Program, seed: int, num_samples: int = NUM_SAMPLES
) -> tuple[list[Wrong], Counter]:
    """Judge a program at the middle of its box, then look for what it called safe wrongly."""
    generator = torch.Generator().manual_seed(seed)
    counts: Counter = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = sample(program, 10, generator)
        taken = StepCapture(first.sources())
        try:
            with taken:
                run(program, first)
        except RuntimeError:  # dtypes that do not go together
            counts["does not run"] += 1
            return [], counts
        verdicts = {v.operation.index: v for v in judge(taken.capture, box_of(program)).verdicts}
        counts.update(v.status for v in verdicts.values())
        counts["errors"] += len(taken.capture.errors)
        names = [call.operation.op for call in taken.capture.calls]
        for how in range(num_samples):
            inputs = sample(program, how, generator)
            watch = Watch()
            with watch:
                run(program, inputs)
            if watch.names != names:
                counts["other path"] += 1
                continue
            counts["failing runs"] += bool(watch.bad)
            for index, is_only_minus in watch.bad.items():
                verdict = verdicts.get(index)
                if verdict is None or verdict.status != "safe":
                    continue
                if verdict.condition == ON_PURPOSE and is_only_minus:
                    continue
                return [Wrong(program, verdict, inputs)], counts
    return [], counts


def describe(wrong: Wrong) -> str:
    op = wrong.verdict.operation
    return f"{op.op} ({op.phase} {op.node}) of step {op.index} was called safe\n{wrong.program}\n{wrong.inputs}"


def choose_by(rng: random.Random) -> Choose:
    return lambda n: rng.randrange(n)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=NUM_SAMPLES)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start = time.perf_counter()
    totals: Counter = Counter()
    num_wrong = 0
    for i in range(given.count):
        seed = given.seed + i
        wrong, counts = examine(make_program(choose_by(random.Random(seed))), seed, given.samples)
        totals.update(counts)
        num_wrong += len(wrong)
        if (i + 1) % 500 == 0:
            print(f"{i + 1} of {given.count}", file=sys.stderr, flush=True)
        for w in wrong[:1]:
            print(f"seed {seed}: {describe(w)}\n", flush=True)
    print(
        f"{given.count} programs, {num_wrong} with a wrong `safe`, {time.perf_counter() - start:.0f} s"
    )
    print(dict(totals))
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

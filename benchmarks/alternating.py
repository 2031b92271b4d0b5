"""What does protection cost a short step on a busy machine? Plain and guarded steps alternate in one process.

    python -m benchmarks.alternating [run step loader] [--pairs N]

Both kinds move the same model with the same optimizer; the plain one calls what was there before our
patches. Counted is the thread's CPU time of each step, with the batch that it draws. Shown are the
quickest tenth and the median of each kind, their ratios, and the median of what a guarded step takes more
than the plain one beside it. What comes once in many steps (deep checks, snapshots, the journal's writes)
is in the mean alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stayfinite import Guard
from stayfinite.config import Settings
from stayfinite.investigate.entry import investigate
from stayfinite.patches import provenance
from stayfinite.patches.loaders import LoaderPatches
from stayfinite.patches.manager import unpatched
from stayfinite.patches.training import TrainingPatches
from stayfinite.recover.policy import Policy
from stayfinite.runtime.engine import Engine
from stayfinite.runtime.journal import RunJournal
from stayfinite.runtime.loop.script_driver import ScriptDriver
from stayfinite.runtime.state import TrainState

NUM_FIRST = 50
"""Steps before the first that counts."""


class Training:
    """Three layers of 128: half a millisecond a step on an idle machine."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(128, 128) for _ in range(3)]
        self.model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.loader = torch.utils.data.DataLoader(_Endless(), batch_size=None)

    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch).pow(2).mean()

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model, batch).backward()
        self.optimizer.step()

    def plain(self) -> Callable[[], None]:
        """A step that goes past every patch."""
        batches = iter(self.loader)
        draw = unpatched(type(batches).__next__)
        backward, step = unpatched(torch.autograd.backward), unpatched(type(self.optimizer).step)

        def one() -> None:
            batch = draw(batches)
            self.optimizer.zero_grad()
            backward(self.loss(self.model, batch))
            step(self.optimizer)

        return one


class _Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle([torch.randn(80, 128) for _ in range(8)])


def run(training: Training) -> Callable[[], None]:
    """As under `stayfinite run`."""
    engine = Engine(TrainState(), Settings(), Policy(), investigate)
    engine.journal = RunJournal(tempfile.mkdtemp(), engine.state)
    driver = ScriptDriver(engine)
    patches = TrainingPatches(driver, finds_optimizers=True)
    LoaderPatches(driver)
    provenance.install()
    driver.on_optimizer(training.optimizer)
    patches.watch_optimizer(training.optimizer)
    batches = iter(training.loader)
    return lambda: training.step(next(batches))


def step(training: Training) -> Callable[[], None]:
    guard = Guard(training.model, training.optimizer)
    batches = iter(training.loader)
    return lambda: guard.step(training.loss, next(batches)) and None


def loader(training: Training) -> Callable[[], None]:
    guard = Guard(training.model, training.optimizer)
    batches = iter(guard(training.loader))
    return lambda: training.step(next(batches))


FORMS = {"run": run, "step": step, "loader": loader}


def measure(form: str, pairs: int) -> None:
    training = Training()
    kinds = {"guarded": FORMS[form](training)}
    kinds["plain"] = training.plain()
    took: dict[str, list[int]] = {name: [] for name in kinds}
    now = time.thread_time_ns
    with contextlib.redirect_stderr(io.StringIO()):
        for i in range(-NUM_FIRST, pairs):
            for name in kinds if i % 2 else reversed(kinds):
                start = now()
                kinds[name]()
                if i >= 0:
                    took[name].append(now() - start)
    quick, usual = ({n: sorted(t)[len(t) // k] / 1e3 for n, t in took.items()} for k in (10, 2))
    more = statistics.median(g - p for g, p in zip(took["guarded"], took["plain"])) / 1e3
    mean = sum(took["guarded"]) / sum(took["plain"])
    print(
        f"{form:<7} quickest tenth {quick['plain']:.0f} and {quick['guarded']:.0f} µs"
        f" = {quick['guarded'] / quick['plain']:.3f}   median {usual['plain']:.0f} and"
        f" {usual['guarded']:.0f} µs   more {more:.1f} µs = {1 + more / usual['plain']:.3f}"
        f"   mean {mean:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("forms", nargs="*", default=list(FORMS))
    parser.add_argument("--pairs", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if len(args.forms) == 1:
        measure(args.forms[0], args.pairs)
        return
    for form in args.forms:  # each in a process of its own: what listens there stays
        command = [sys.executable, "-m", "benchmarks.alternating", form, "--pairs", str(args.pairs)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

"""What does protection cost while nothing is wrong? All variants interleaved in one run.

    python -m benchmarks.overhead [a b c] [--rounds N]

Each variant is timed beside a plain loop, one right after the other and each of them first every other
time, so that a slow moment of the machine hits both; shown is the median of those ratios. Deep checks
and snapshots come once in many steps, where a median would not see them: their share of the time is
measured in place and added. A second plain loop shows how far two equal ones are apart, which is what
the run can tell at all. Ends with 1 if one of ours is over its bar.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.models import WORKLOADS, Workload
from stayfinite import Guard
from stayfinite.config import Settings
from stayfinite.investigate.entry import investigate
from stayfinite.patches import provenance
from stayfinite.patches.loaders import LoaderPatches
from stayfinite.patches.training import TrainingPatches
from stayfinite.recover.policy import Policy
from stayfinite.runtime.engine import Engine
from stayfinite.runtime.journal import RunJournal
from stayfinite.runtime.loop.driver import LoopDriver
from stayfinite.runtime.loop.script_driver import ScriptDriver
from stayfinite.runtime.state import TrainState

BARS = {"a": 1.05, "b": 1.01, "c": 1.05}


def _loop(w: Workload, optimizer: Any, batches: Any, check: Any = None) -> None:
    for batch in batches:
        optimizer.zero_grad()
        loss = w.loss_fn(w.model, batch)
        loss.backward()
        if check is not None:
            check(w, batch, loss)
        optimizer.step()


def _cycle(w: Workload, n: int) -> list[Any]:
    return [w.batches[i % len(w.batches)] for i in range(n)]


class _Endless(torch.utils.data.IterableDataset[Any]):
    def __init__(self, w: Workload) -> None:
        self.w = w

    def __iter__(self) -> Any:
        return itertools.cycle(self.w.batches)


class Variant:
    """One way to run the loop; all of them move the same model with the same optimizer.

    Memory that lies elsewhere makes a step of (c) 3 % slower or faster, so nothing is allocated twice.
    """

    def __init__(
        self,
        run: Callable[[int], None],
        engine: Engine | None = None,
        patched: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.run = run
        self._patched = patched
        self.deep = 0.0
        """Seconds in deep checks and snapshots."""
        self._engine = engine
        self._left = time.perf_counter()
        if engine is not None:
            self._time(engine.deep_checks, "run")
            self._time(engine.state, "take_snapshot")
            self._time(engine.state, "is_still_finite")

    def _time(self, home: Any, name: str) -> None:
        original = getattr(home, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start, before = time.perf_counter(), self.deep
            try:
                return original(*args, **kwargs)
            finally:
                self.deep = before + time.perf_counter() - start

        setattr(home, name, timed)

    def __call__(self, n: int, num_first: int = 1) -> tuple[float, float]:
        """(seconds without deep checks and snapshots, of so many steps; those seconds as a share of
        all), after some first steps: a patch that comes in empties Python's caches, and a run does that
        once."""
        if self._engine is not None:
            checks = self._engine.deep_checks
            # The time that the other variants took, and what they wrote, are not this run's.
            checks._last_started += time.perf_counter() - self._left
            if checks._due_snapshot is not None:
                checks._due_snapshot = (checks._due_snapshot[0], self._engine.state.versions())
        with self._patched():
            begin, before = time.perf_counter(), self.deep
            self.run(num_first)
            start, deep = time.perf_counter(), self.deep
            self.run(n)
            self._left = time.perf_counter()
        share = (self.deep - before) / (self._left - begin)
        return self._left - start - (self.deep - deep), share

    def count_syncs(self, n: int) -> float:
        """Host syncs a step."""
        with self._patched(), _Syncs() as syncs:
            self.run(n)
        return syncs.count / n


def plain(w: Workload, optimizer: Any) -> Variant:
    return Variant(lambda n: _loop(w, optimizer, _cycle(w, n)))


def guard_step(w: Workload, optimizer: Any, deferred: bool) -> Variant:
    guard = Guard(w.model, optimizer, settings={"deferred": deferred})

    def run(n: int) -> None:
        for batch in _cycle(w, n):
            guard.step(w.loss_fn, batch)

    return Variant(run, guard.engine)


def guard_loop(w: Workload, optimizer: Any, deferred: bool) -> Variant:
    guard = Guard(w.model, optimizer, settings={"deferred": deferred})
    # One long epoch, as in a real run: the deep check at an epoch's end is not what is measured.
    stream = iter(guard(itertools.cycle(w.batches)))
    driver = guard._loop
    assert driver is not None and driver.on_close is not None
    driver.on_close()  # the other variants run unpatched

    def run(n: int) -> None:
        _loop(w, optimizer, itertools.islice(stream, n))

    return Variant(run, guard.engine, lambda: _patched(driver, optimizer, is_script=False))


def script(w: Workload, optimizer: Any, deferred: bool) -> Variant:
    """What `stayfinite run` does, without the process round it."""
    engine = Engine(TrainState(), Settings(deferred=deferred), Policy(), investigate)
    engine.journal = RunJournal(tempfile.mkdtemp(), engine.state)
    driver = ScriptDriver(engine)
    driver.on_optimizer(optimizer)
    loader = torch.utils.data.DataLoader(_Endless(w), batch_size=None)
    streams: list[Any] = []

    def run(n: int) -> None:
        streams[:] = streams or [iter(loader)]
        _loop(w, optimizer, itertools.islice(streams[0], n))

    return Variant(run, engine, lambda: _patched(driver, optimizer, is_script=True))


@contextlib.contextmanager
def _patched(driver: LoopDriver, optimizer: Any, is_script: bool) -> Iterator[None]:
    training = TrainingPatches(driver, finds_optimizers=is_script)
    training.watch_optimizer(optimizer)
    loaders = LoaderPatches(driver) if is_script else None
    provenance.install()
    try:
        yield
    finally:
        provenance.remove()
        training.close()
        if loaders is not None:
            loaders.close()


def plain_loader(w: Workload, optimizer: Any) -> Variant:
    stream = iter(torch.utils.data.DataLoader(_Endless(w), batch_size=None))
    return Variant(lambda n: _loop(w, optimizer, itertools.islice(stream, n)))


def detect_anomaly(w: Workload, optimizer: Any) -> Variant:
    def run(n: int) -> None:
        with torch.autograd.set_detect_anomaly(True):
            _loop(w, optimizer, _cycle(w, n))

    return Variant(run)


def isnan_checks(w: Workload, optimizer: Any) -> Variant:
    """The checks that a troubleshooting guide wrote by hand: input, loss, every gradient."""

    def check(w: Workload, batch: Any, loss: Any) -> None:
        first = batch[0] if isinstance(batch, (list, tuple)) else batch
        bad = [first, loss, *(p.grad for p in w.model.parameters() if p.grad is not None)]
        if any(bool(torch.isnan(t).any()) or bool(torch.isinf(t).any()) for t in bad):
            raise ValueError("NaN")

    return Variant(lambda n: _loop(w, optimizer, _cycle(w, n), check))


def debug_underflow_overflow(w: Workload, optimizer: Any) -> Variant | None:
    try:
        from transformers.debug_utils import DebugUnderflowOverflow
    except ImportError:
        return None

    def run(n: int) -> None:
        hooks: list[Any] = []
        register = torch.nn.Module.register_forward_hook

        def keep(self: Any, *args: Any, **kwargs: Any) -> Any:
            handle = register(self, *args, **kwargs)
            hooks.append(handle)
            return handle

        torch.nn.Module.register_forward_hook = keep  # type: ignore[method-assign]
        try:
            DebugUnderflowOverflow(w.model)
        finally:
            torch.nn.Module.register_forward_hook = register  # type: ignore[method-assign]
        try:
            _loop(w, optimizer, _cycle(w, n))
        finally:
            for handle in hooks:
                handle.remove()

    return Variant(run)


class _Syncs(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        return func(*args, **(kwargs or {}))


def variants(w: Workload) -> dict[str, Variant]:
    optimizer = w.optimizer()
    found: dict[str, Variant | None] = {
        "plain": plain(w, optimizer),
        "plain, once more": plain(w, optimizer),
        "guard.step": guard_step(w, optimizer, False),
        "guard.step deferred": guard_step(w, optimizer, True),
        "guard(loader)": guard_loop(w, optimizer, False),
        "guard(loader) deferred": guard_loop(w, optimizer, True),
        "plain, DataLoader": plain_loader(w, optimizer),
        "run": script(w, optimizer, False),
        "run deferred": script(w, optimizer, True),
        "detect_anomaly": detect_anomaly(w, optimizer),
        "isnan per tensor": isnan_checks(w, optimizer),
        "DebugUnderflowOverflow": debug_underflow_overflow(w, optimizer),
    }
    return {name: run for name, run in found.items() if run is not None}


STEPS = {"a": 200, "b": 1, "c": 1}
ROUNDS = {"a": 33, "b": 41, "c": 41}


def measure(key: str, rounds: int, peers: bool) -> bool:
    w = WORKLOADS[key]()
    todo = variants(w)
    names = [n for n in todo if n != "plain" and (peers or n.startswith(("plain", "guard", "run")))]
    for name in todo:
        todo[name](max(2, STEPS[key] // 2))
    pairs: dict[str, list[tuple[float, float, float]]] = {n: [] for n in names}
    for r in range(rounds):
        for i in range(len(names)):
            name = names[(r + i) % len(names)]
            base = todo["plain, DataLoader" if name.startswith("run") else "plain"]
            with contextlib.redirect_stderr(io.StringIO()):
                if (r + i) % 2:
                    plain, ours = base(STEPS[key]), todo[name](STEPS[key])
                else:
                    ours, plain = todo[name](STEPS[key]), base(STEPS[key])
            pairs[name].append((*ours, plain[0]))
    print(f"\n{w.name}: {rounds} pairs of {STEPS[key]} steps each, bar {BARS[key]:.2f}x")
    print(f"  {'variant':<26} {'ms/step':>8} {'ratio':>7}  = {'steps':>5} + {'deep':>6} {'syncs/step':>11}")  # fmt: skip
    is_ok = True
    for name in names:
        usual = statistics.median(t for t, _, _ in pairs[name]) / STEPS[key] * 1e3
        steps = statistics.median(t / base for t, _, base in pairs[name])
        deep = statistics.mean(share for _, share, _ in pairs[name])
        with contextlib.redirect_stderr(io.StringIO()):
            syncs = todo[name].count_syncs(4)
        note = ""
        if name.startswith(("guard", "run")):
            is_over = steps + deep > BARS[key]
            is_ok, note = is_ok and not is_over, "  over the bar" if is_over else "  ok"
        print(f"  {name:<26} {usual:8.3f} {steps + deep:7.3f}    {steps:.3f}  {deep:7.4f} {syncs:10.2f}{note}", flush=True)  # fmt: skip
    return is_ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["a", "b", "c"])
    parser.add_argument(
        "--rounds", type=int, help="pairs of each variant: 33 for a, 41 for b and c by default"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-peers", action="store_true", help="only the plain loop and our forms")
    args = parser.parse_args()
    torch.set_num_threads(int(args.threads))
    found = [measure(k, args.rounds or ROUNDS[k], not args.no_peers) for k in args.workloads]
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()

"""What does agreement between ranks cost while nothing is wrong? Two gloo processes, interleaved.

    python -m benchmarks.ranks [--world N] [--rounds N] [--steps N] [--sizes medium,large]
    python -m benchmarks.ranks --count [--world N]      collectives, bytes and Python calls of ours in a healthy step, exactly
    python -m benchmarks.ranks --share [--world N]      only the last figure: what a busy machine can still tell

`benchmarks.ranks_simulated` says what it would be on more ranks than a machine has.

Three loops over the same DDP or FSDP2 model alternate in every round: nobody watches (plain), each
rank watches by itself (alone: not safe, shown for its cost only), and the ranks agree (together).
"together" minus "alone" is what agreement costs. Shown are lower deciles over many short rounds:
two processes that wait for each other are delayed by whatever else runs, and never sped up by it.
"processor" is rank 0's processor time, together over plain, the median of the rounds: on a machine with fewer
free cores than ranks it alone means something, and with much else running not even that: rounds differ by more than what is
measured. "ours" is taken within one run: the processor time of rank 0 (all threads) that passes inside of our calls, over that of the
rest of the step. What our calls make slower elsewhere (memory that is not in the cache) it does not show.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import stayfinite
from stayfinite import Guard

SIZES = {
    "small (0.1 M parameters)": (128, 32),
    "medium (2.1 M parameters)": (512, 64),
    "large (8.4 M parameters)": (1024, 128),
}
DEPTH = 8


def make(kind: str, width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(DEPTH)]
    model = nn.Sequential(*layers)
    if kind == "DDP":
        return DistributedDataParallel(model)
    for layer in layers:
        fully_shard(layer)
    return fully_shard(model)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch).square().mean()


def plain(model: nn.Module, batches: list[Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> None:
        for batch in batches:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

    return run


def guarded(model: nn.Module, batches: list[Tensor], is_alone: bool) -> Callable[[], None]:
    guard = Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    if is_alone:
        guard.engine.ranks.leave()

    def run() -> None:
        for batch in batches:
            guard.step(loss_of, batch)

    return run


class Meter:
    """The processor time that passes in the three calls that a healthy step makes into ours."""

    def __init__(self, guard: Guard) -> None:
        self.seconds = 0.0
        for name in ("open", "check", "close_healthy"):
            setattr(guard.engine, name, self._metered(getattr(guard.engine, name)))

    def _metered(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def metered(*args: Any) -> Any:
            start = time.process_time()
            try:
                return call(*args)
            finally:
                self.seconds += time.process_time() - start

        return metered


def share(kind: str, width: int, rows: int, steps: int) -> float:
    """Ours over the rest, in one run; behind the steps in which the ranks still meet often."""
    batches = [torch.randn(rows, width) for _ in range(steps)]
    model = make(kind, width)
    guard = Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    meter = Meter(guard)
    start = 0.0
    for i, batch in enumerate([*batches[:1] * 32, *batches]):
        if i == 32:
            meter.seconds, start = 0.0, time.process_time()
        guard.step(loss_of, batch)
    total = time.process_time() - start
    guard.close()
    return meter.seconds / (total - meter.seconds)


def share_main(rank: int, world: int, store: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for kind in ("DDP", "FSDP2"):
        for name, (width, rows) in options["sizes"].items():
            found = share(kind, width, rows, options["rounds"])
            if rank == 0:
                print(f"{kind:6}{name:28} ours: {found:.1%} of the rest of the step", flush=True)
    dist.destroy_process_group()


def decile(times: list[float]) -> float:
    return statistics.quantiles(times, n=10)[0]


def all_reduce_us() -> float:
    pair = torch.zeros(6, dtype=torch.float64)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        dist.all_reduce(pair, op=dist.ReduceOp.MAX)
        times.append(time.perf_counter() - start)
    return 1e6 * decile(times)


def measure(
    kind: str, width: int, rows: int, rounds: int, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """(seconds, processor seconds of this rank) of a step in each round."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [torch.randn(rows, width, generator=generator) for _ in range(steps)]
    runs = {
        "plain": plain(make(kind, width), batches),
        "alone": guarded(make(kind, width), batches, is_alone=True),
        "together": guarded(make(kind, width), batches, is_alone=False),
    }
    for run in runs.values():
        run()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    names = list(runs)
    for i in range(rounds):
        for name in names[i % 3 :] + names[: i % 3]:
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            runs[name]()
            now, worked = time.perf_counter() - start, time.process_time() - used
            times[name].append((now / steps, worked / steps))
    return times


def count(kind: str, steps: int) -> dict[str, tuple[float, float, float]]:
    """Collectives of a step by the group's own number, and the bytes of those that are all-reduces by name (DDP
    and FSDP2 reduce their gradients in another way); behind the first step, in which the ranks meet."""
    batches = [torch.randn(8, 64) for _ in range(steps)]
    all_reduce, num_bytes, found = dist.all_reduce, 0, {}

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_bytes
        num_bytes += tensor.numel() * tensor.element_size()
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = counted
    for name in ("plain", "together"):
        model = make(kind, 64)
        go = plain(model, batches) if name == "plain" else guarded(model, batches, is_alone=False)
        go()
        before, num_bytes = dist.group.WORLD._get_sequence_number_for_group(), 0
        go()
        number = dist.group.WORLD._get_sequence_number_for_group() - before
        found[name] = (number / steps, num_bytes / steps, num_calls(go))
    dist.all_reduce = all_reduce
    return found


def num_calls(go: Callable[[], None]) -> float:
    """How many functions of ours are called in an ordinary step, in which nothing is due."""
    home, found = os.path.dirname(stayfinite.__file__), [0]

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is loss_of.__code__:
            found.append(0)
        found[-1] += event == "call" and frame.f_code.co_filename.startswith(home)

    sys.setprofile(note)
    try:
        go()
    finally:
        sys.setprofile(None)
    return min(found[1:-1])


def count_main(rank: int, world: int, store: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for kind in ("DDP", "FSDP2"):
        found = count(kind, options["steps"])
        if rank == 0:
            more = [b - a for a, b in zip(found["plain"], found["together"])]
            print(
                f"{kind:6} plain: {found['plain'][0]:g} collectives a step; watched: {more[0]:+g}, {more[1]:+g} bytes, "
                f"{more[2]:g} Python calls of ours in an ordinary step"
            )
    dist.destroy_process_group()


def rank_main(rank: int, world: int, store: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    say = print if rank == 0 else lambda *_: None
    say(f"one all-reduce of six numbers, {world} processes: {all_reduce_us():.0f} us")
    say(
        f"{'':34}{'plain':>10}{'alone':>9}{'together':>10}{'all-reduce':>12}{'of a step':>11}{'processor':>11}"
    )
    for kind in ("DDP", "FSDP2"):
        for name, (width, rows) in options["sizes"].items():
            times = measure(kind, width, rows, options["rounds"], options["steps"])
            low = {k: 1e6 * decile([wall for wall, _ in v]) for k, v in times.items()}
            work = [b / a for (_, a), (_, b) in zip(times["plain"], times["together"])]
            base, extra = low["plain"], low["together"] - low["alone"]
            say(
                f"{kind:6}{name:28}{base:7.0f} us{low['alone'] / base:9.3f}"
                f"{low['together'] / base:10.3f}{extra:9.0f} us{extra / base:11.1%}"
                f"{statistics.median(work):11.3f}"
            )
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sizes", default="small,medium,large")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--share", action="store_true")
    options = parser.parse_args()
    wanted = options.sizes.split(",")
    options.sizes = {name: size for name, size in SIZES.items() if name.split()[0] in wanted}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.world, os.path.join(folder, "store"), vars(options))
        main_of_rank = count_main if options.count else share_main if options.share else rank_main
        mp.spawn(main_of_rank, args=arguments, nprocs=options.world)


if __name__ == "__main__":
    main()

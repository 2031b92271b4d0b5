"""Writes again and again and is killed in the middle of it; what is left must be whole.

    python -m tests.recover.kill snapshot|checkpoint|plain COUNT SEED FOLDER

Children are forked, so that a death costs milliseconds. A child dies as of `kill -9`, by a signal that nobody
handles, when it has had its share of CPU time: on a busy machine it comes as far as on an idle one. Prints `deaths broken interrupted`: how many
children died, after how many of them the file was no loadable finite state of one single step, and
how many died in the middle of a write (they left a part behind).
"""

import os
import random
import signal
import sys
from pathlib import Path

import torch

from stayfinite import save_gate
from stayfinite.recover.snapshot import DiskSnapshot

SIZE = 400_000


def tensors(step):
    return {"a": torch.full((SIZE,), float(step)), "b": torch.full((SIZE,), float(step))}


def write_for_ever(kind, path, step):
    torch.set_num_threads(1)
    if kind == "snapshot":
        live = list(tensors(step).values())
        snapshot = DiskSnapshot(path)
        while True:
            for t in live:
                t.fill_(float(step))
            snapshot.take(step, live, [], [], ["a", "b"])
            step += 1
    if kind == "plain":
        while True:
            torch.save({"step": step, **tensors(step)}, path)
            step += 1
    with save_gate():
        while True:
            torch.save({"step": step, **tensors(step)}, path)
            bad = tensors(step)
            bad["a"][7] = float("nan")
            torch.save({"step": step, **bad}, path)  # goes beside it
            step += 1


def state_of(path):
    """The step of a whole and finite file, or None."""
    try:
        kept = torch.load(path, weights_only=True)
    except Exception:
        return None
    values = kept["tensors"].values() if "tensors" in kept else (kept["a"], kept["b"])
    step = kept["step"]
    return step if all((t == float(step)).all() for t in values) else None


def main(kind, count, seed, folder):
    rng = random.Random(seed)
    path = Path(folder) / "last.pt"
    step, broken, interrupted, deaths = 0, 0, 0, 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the gate tells of each bad save
    while deaths < count:
        share = rng.uniform(0.001, 0.03)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, share)
            write_for_ever(kind, path, step)
        os.waitpid(child, 0)
        if not path.exists():
            continue
        deaths += 1
        found = state_of(path)
        broken += found is None or found < step
        step = found if found is not None else step
        parts = list(Path(folder).glob(".stayfinite-part-*"))
        interrupted += bool(parts)
        for part in parts:
            for file in part.iterdir():
                file.unlink()
            part.rmdir()
    print(deaths, broken, interrupted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

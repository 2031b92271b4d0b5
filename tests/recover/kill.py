"""Writes again and again and is killed in the middle of it; what is left must be whole.

    python -m tests.recover.kill snapshot|checkpoint|plain COUNT SEED FOLDER

Children are forked, so that a death costs milliseconds. A child dies as of `kill -9`, every other one when it has
had its share of CPU time, which may be in the middle of a system call, and the rest at a call that was drawn beforehand:
where these die depends neither on the machine nor on what else it does. Prints `deaths broken interrupted`: how many
children died, after how many of them the file was no loadable finite state of one single step, and
how many died in the middle of a write (they left a part behind).
"""

import contextlib
import itertools
import os
import random
import signal
import sys
from pathlib import Path

import torch

from stayfinite import save_gate
from stayfinite.recover.snapshot import DiskSnapshot

SIZE = 400_000
CALLS = 3_000
"""About two writes."""


def tensors(step):
    return {"a": torch.full((SIZE,), float(step)), "b": torch.full((SIZE,), float(step))}


def write(kind, path, step):
    kept = tensors(step)
    if kind == "snapshot":
        DiskSnapshot(path).take(step, list(kept.values()), [], [], list(kept))
        return
    torch.save({"step": step, **kept}, path)
    if kind == "checkpoint":
        kept["a"][7] = float("nan")
        torch.save({"step": step, **kept}, path)  # goes beside it


def state_of(path):
    """The step of a whole and finite file, or None."""
    try:
        kept = torch.load(path, weights_only=True)
    except Exception:
        return None
    values = kept["tensors"].values() if "tensors" in kept else (kept["a"], kept["b"])
    step = kept["step"]
    return step if all((t == float(step)).all() for t in values) else None


def die_after(calls):
    """This process is killed at the call after so many others, those of C functions included."""
    left = calls

    def count(*_):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def die_after_seconds(share):
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, share)


def main(kind, count, seed, folder):
    rng = random.Random(seed)
    path = Path(folder) / "last.pt"
    step, broken, interrupted = 0, 0, 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the gate tells of each bad save
    write(kind, path, step)  # what is imported at the first write, is imported once
    for attempt in range(count):
        share, calls = rng.uniform(0.001, 0.03), rng.randrange(CALLS)
        child = os.fork()
        if child == 0:
            if attempt % 2:
                die_after_seconds(share)
            else:
                die_after(calls)
            for later in itertools.count(step):
                write(kind, path, later)
        os.waitpid(child, 0)
        found = state_of(path)
        broken += found is None or found < step
        step = found if found is not None else step
        parts = list(Path(folder).glob(".stayfinite-part-*"))
        interrupted += bool(parts)
        for part in parts:
            for file in part.iterdir():
                file.unlink()
            part.rmdir()
    print(count, broken, interrupted)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with save_gate() if sys.argv[1] == "checkpoint" else contextlib.nullcontext():
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

"""A rank that leaves the others alone in the middle of an investigation, in several ways."""

import contextlib
import time

import torch
import torch.distributed
from tests.distributed import training

from stayfinite import Guard
from stayfinite.runtime.ranks.side_groups import SideGroup, SideGroupError


def disturbed(rank: int, job: dict) -> dict:
    """On rank 0 the forward raises at one of its calls in a replay, or the rank is late in what it says."""
    model = training.make(job["kind"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
    seconds = job.get("rank_seconds", 30.0)
    guard = Guard(model, optimizer, settings={"budget": 1e-6, "rank_seconds": seconds})
    calls = 0

    def loss_of(model, batch):
        nonlocal calls
        calls += 1
        loss = training.loss_of(model, batch)
        if rank == 0 and calls == job.get("raises_at"):
            raise RuntimeError("only now and only here")  # the others go on to their backward
        return loss

    if rank == 0 and "late_at" in job:
        _be_late(job["late_at"], 3 * seconds)
    for batch in training.batches(rank, "loss"):
        guard.step(loss_of, batch)
    guard.close()
    return {
        "incidents": [i.to_json() for i in guard.incidents],
        "calls": calls,
        "state": training.state_of(model, optimizer),
    }


def _be_late(number: int, seconds: float) -> None:
    original, count = SideGroup.gather, 0

    def gather(self, value):
        nonlocal count
        count += 1
        if count == number:
            time.sleep(seconds)
        return original(self, value)

    SideGroup.gather = gather


def missed_messages(rank: int, job: dict) -> dict:
    """One rank misses what it was told, each message of an investigation in turn; the others have it. Or it
    fails in code of ours at that point (`is_bug`).

    A training for each message, one after the other, until there was no such message any more.
    """
    found = []
    error = ZeroDivisionError("of ours") if job.get("is_bug") else SideGroupError("it was lost")
    for number in range(1, 200):
        model = training.make(job["kind"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
        settings = {"budget": 1e-6, "rank_seconds": 5.0, "diagnose": False, "max_batches": 3}
        guard = Guard(model, optimizer, policy=job["policy"], settings=settings)
        with _missing(number if rank == job["victim"] else None, error) as seen:
            data = training.batches(rank, job["fault"])
            run = training._by_step if job["form"] == "step" else training._by_loop
            run(guard, model, optimizer, data, job, rank, {"counts": []}, None)
            guard.close()
        kinds = [i.action.kind for i in guard.incidents]
        found.append({"actions": kinds, "state": training.state_of(model, optimizer)})
        is_over = torch.tensor(float(rank == job["victim"] and seen["count"] < number))
        torch.distributed.all_reduce(is_over)
        if is_over:
            break
    return {"found": found}


@contextlib.contextmanager
def _missing(number: int | None, error: Exception):
    """The message of this number comes, and is lost on this rank."""
    originals, seen = {n: getattr(SideGroup, n) for n in ("gather", "broadcast")}, {"count": 0}

    def talk(name):
        def said(self, *args):
            seen["count"] += 1
            told = originals[name](self, *args)
            if seen["count"] == number:
                raise error
            return told

        return said

    for name in originals:
        setattr(SideGroup, name, talk(name))
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(SideGroup, name, original)

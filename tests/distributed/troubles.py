"""A rank that leaves the others alone in the middle of an investigation, in several ways."""

import time

import torch
from tests.distributed import training

from stayfinite import Guard
from stayfinite.runtime.side_groups import SideGroup


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

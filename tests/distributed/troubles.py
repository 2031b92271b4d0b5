"""A rank that leaves the others alone in the middle of an investigation, in several ways."""

import contextlib
import pathlib
import time

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from tests.distributed import training

from stayfinite import BudgetExceededError, Guard
from stayfinite.report.model import load_run
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
            reported = originals[name](self, *args)
            if seen["count"] == number:
                raise error
            return reported

        return said

    for name in originals:
        setattr(SideGroup, name, talk(name))
    try:
        yield seen
    finally:
        for name, original in originals.items():
            setattr(SideGroup, name, original)


class Branches(torch.nn.Module):
    """Of its layers one is used in each step; the others have no gradient then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(3))

    def forward(self, x, number):
        return self.layers[number](x)


def unused(rank: int, job: dict) -> dict:
    """A step that uses one layer is bad; the next uses another."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
    fault = job.get("fault")
    guard = Guard(model, optimizer) if fault else None
    data = list(enumerate(training.batches(rank, fault)))
    data = [(i, b) for i, b in data if i not in job.get("without", ())]
    for i, batch in guard(data) if guard else data:
        optimizer.zero_grad()
        training.loss_of(lambda x, i=i: model(x, i % 3), batch).backward()
        optimizer.step()
    reported = [i.to_json() for i in guard.incidents] if guard else []
    if guard:
        guard.close()
    return {"incidents": reported, "state": training.state_of(model, optimizer)}


def one_watched(rank: int, job: dict) -> dict:
    """Only rank 0 has a guard."""
    model = training.make(job["kind"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
    guard = Guard(model, optimizer, settings={"rank_seconds": 0.5}) if rank == 0 else None
    data = training.batches(rank, None)
    for batch in guard(data) if guard else data:
        optimizer.zero_grad()
        training.loss_of(model, batch).backward()
        optimizer.step()
    if guard:
        guard.close()
    return {"incidents": [], "state": training.state_of(model, optimizer)}


class _RaisesOnce(torch.autograd.Function):
    """In one of its backwards on rank 0, when the others are in theirs."""

    at = count = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        _RaisesOnce.count += 1
        if _RaisesOnce.count == _RaisesOnce.at and torch.distributed.get_rank() == 0:
            raise RuntimeError("only now and only here")
        return grad


def broken_backward(rank: int, job: dict) -> dict:
    """The first replay's backward raises on rank 0, before all its gradients are there."""
    model = training.make("ddp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.RATE)
    guard = Guard(model, optimizer, settings={"budget": 1e-6})
    _RaisesOnce.at = training.AT + 2
    model.module.first.register_forward_hook(lambda module, args, out: _RaisesOnce.apply(out))
    for batch in training.batches(rank, "loss"):
        guard.step(training.loss_of, batch)
    guard.close()
    reported = [i.to_json() for i in guard.incidents]
    return {"incidents": reported, "state": training.state_of(model, optimizer)}


def slow_data(rank: int, job: dict) -> dict:
    """Rank 1 waits for its batches; the others find out in their backward."""
    torch.manual_seed(0)
    model = training.make(job["kind"])
    optimizer = torch.optim.SGD(model.parameters(), lr=training.RATE)
    home = pathlib.Path(job["folder"]) / "run"
    guard = Guard(model, optimizer, run_dir=home)

    def data():
        for _ in range(3):
            for batch in training.batches(rank, None):
                time.sleep(0.05 * (rank == 1))
                yield batch

    for batch in guard(data()):
        optimizer.zero_grad()
        training.loss_of(model, batch).backward()
        optimizer.step()
    guard.close()
    torch.distributed.barrier()
    return {"late": [r.rank for r in load_run(home).ranks if r.is_late]}


def _loaded(model, optimizer, home: pathlib.Path) -> list[bytes]:
    """What a script that resumes from the last healthy state has."""
    for p in model.parameters():
        p.detach().zero_()
    net = getattr(model, "module", model)
    current = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    if (home / "last_healthy.pt").exists():
        current = torch.load(home / "last_healthy.pt", weights_only=True)
    elif (home / "last_healthy").exists():
        dcp.load(current, checkpoint_id=home / "last_healthy")
    net.load_state_dict(current["model"])
    optimizer.load_state_dict(current["optimizer"])
    return training.state_of(model, optimizer)


def runs_away(rank: int, job: dict) -> dict:
    """A learning rate far too large, on all ranks."""
    model = training.make(job["kind"])
    optimizer = torch.optim.SGD(model.parameters(), lr=job.get("lr", 5.0), momentum=0.9)
    home = pathlib.Path(job["folder"]) / "run"
    guard = Guard(model, optimizer, policy=job["policy"], run_dir=home, settings={"max_batches": 8})
    stopped = ""
    try:
        for _ in range(job.get("epochs", 8)):
            for batch in guard(training.batches(rank)):
                optimizer.zero_grad()
                loss = training.loss_of(model, batch)
                loss.backward()
                optimizer.step()
    except BudgetExceededError as error:
        stopped = str(error)
    guard.close()
    torch.distributed.barrier()
    return {
        "incidents": [i.to_json() for i in guard.incidents],
        "stopped": stopped,
        "loss": loss.item(),
        "state": training.state_of(model, optimizer),
        "saved": _loaded(model, optimizer, home) if stopped else [],
    }

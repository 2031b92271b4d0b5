"""A small distributed training with one faulty rank, with the guard and without."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

NUM_BATCHES = 8
AT = 4
FAULTS = ("loss", "gradient", "data", "inf_loss")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    if kind == "ddp":
        return DistributedDataParallel(net)
    for layer in (net.first, net.second):
        fully_shard(layer)
    return fully_shard(net)


def batches(rank: int, world: int, fault: str | None, faulty: int) -> list[dict]:
    generator = torch.Generator().manual_seed(100 + rank)
    found = []
    for i in range(NUM_BATCHES):
        x = torch.randn(5, 6, generator=generator)
        y = torch.randn(5, 4, generator=generator)
        mode = fault if fault is not None and i == AT and rank == faulty else ""
        if mode == "data":
            x[2, 3] = math.inf
        found.append({"x": x, "y": y, "mode": mode})
    return found


def loss_of(model: nn.Module, batch: dict) -> torch.Tensor:
    error = (model(batch["x"]) - batch["y"]).square()
    loss = error.mean()
    if batch["mode"] == "loss":
        loss = loss + torch.log(-error.mean())
    elif batch["mode"] == "gradient":
        loss = loss + torch.sqrt(error * 0).sum()
    elif batch["mode"] == "inf_loss":
        loss = loss + torch.exp(error.detach().amax() + 1000)
    return loss


# -- what is left in the end ------------------------------------------------------------------------


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[bytes]:
    """Parameters and moments in full, as bytes: bitwise equal or not."""
    tensors = [whole(p) for p in model.parameters()]
    for p in model.parameters():
        entries = optimizer.state.get(p, {})
        tensors += [whole(entries[k]) for k in sorted(entries) if torch.is_tensor(entries[k])]
    return [t.numpy().tobytes() for t in tensors]


def sequence() -> int:
    return dist.group.WORLD._get_sequence_number_for_group()


# -- scenarios --------------------------------------------------------------------------------------


def plain(rank: int, job: dict) -> dict:
    """Nobody watches; the batch that would fail is left out on every rank."""
    model = make(job["kind"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    counts = []
    for i, batch in enumerate(batches(rank, job["world"], None, 0)):
        if i == job.get("without"):
            continue
        before = sequence()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if job.get("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        optimizer.step()
        counts.append(sequence() - before)
    return {"state": state_of(model, optimizer), "counts": counts}


def guarded(rank: int, job: dict) -> dict:
    """The same under the guard, in the form and with the fault that the job says."""
    from stayfinite import Guard
    from stayfinite.errors import NonFiniteError

    model = make(job["kind"])
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.05, fused=True if job.get("fused") else None
    )
    settings = {"budget": job.get("budget", 1.0), "deferred": bool(job.get("deferred"))}
    guard = Guard(
        model, optimizer, policy=job.get("policy", "skip"), settings=settings,
        clip_norm=job.get("clip") if job["form"] == "step" else None,
        run_dir=job.get("run_dir"),
    )  # fmt: skip
    found: dict = {"raised": None, "counts": []}
    data = batches(rank, job["world"], job.get("fault"), job.get("faulty", 1))
    run = _by_step if job["form"] == "step" else _by_loop
    try:
        run(guard, model, optimizer, data, job, rank, found)
        guard.close()
    except NonFiniteError as e:
        found["raised"] = e.incident.id
    found["incidents"] = [i.to_json() for i in guard.incidents]
    found["state"] = state_of(model, optimizer)
    return found


def _corrupt(optimizer: torch.optim.Optimizer, job: dict, rank: int, i: int) -> None:
    """Something outside the training writes into this rank's moments (or its shard of them)."""
    if job.get("fault") == "moment" and rank == job.get("faulty", 1) and i == AT:
        entries = next(iter(optimizer.state.values()))
        moment = entries["exp_avg"]
        getattr(moment, "_local_tensor", moment).view(-1)[0] = math.nan


def _by_step(guard, model, optimizer, data, job, rank, found):
    for i, batch in enumerate(data):
        before = sequence()
        guard.step(loss_of, batch)
        found["counts"].append(sequence() - before)
        _corrupt(optimizer, job, rank, i)


def _by_loop(guard, model, optimizer, data, job, rank, found):
    for batch in guard(data):
        before = sequence()
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if job.get("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        optimizer.step()
        if not guard.replaying:
            found["counts"].append(sequence() - before)
            _corrupt(optimizer, job, rank, len(found["counts"]) - 1)

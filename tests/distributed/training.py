"""A small distributed training with one faulty rank, with the guard and without."""

import contextlib
import functools
import itertools
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

NUM_BATCHES = 8
AT = 4
RATE = 0.05


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)  # of 4 ranks, one has no part of the bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    if kind == "ddp":
        return DistributedDataParallel(net)
    if kind == "flat":
        cpu = torch.device("cpu")
        net.first = FullyShardedDataParallel(net.first, device_id=cpu)
        return FullyShardedDataParallel(net, device_id=cpu)
    if kind == "tp":
        return _in_columns(net, init_device_mesh("cpu", (dist.get_world_size(),)))
    if kind == "2d":
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        return fully_shard(_in_columns(net, mesh["tp"]), mesh=mesh["dp"])
    if kind.startswith("fsdp"):
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy = {"mp_policy": half} if kind == "fsdp_half" else {}
        for layer in (net.first, net.second):
            fully_shard(layer, **policy)
        return fully_shard(net, **policy)
    return net


def _in_columns(net: nn.Module, mesh) -> nn.Module:
    return parallelize_module(net, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})


def data_rank(kind: str, rank: int) -> int:
    """Whose data a rank has: those of one tensor parallel group have the same."""
    return {"tp": 0, "2d": rank // 2}.get(kind, rank)


def batches(rank: int, fault: str | None = None, faulty: int = 1, at: int = AT) -> list[dict]:
    generator = torch.Generator().manual_seed(100 + rank)
    found = []
    for i in range(NUM_BATCHES):
        x = torch.randn(5, 6, generator=generator)
        y = torch.randn(5, 3, generator=generator)
        mode = fault if fault is not None and i == at and rank == faulty else ""
        if mode == "data":
            x[2, 3] = math.inf
        found.append({"x": x, "y": y, "mode": mode})
    return found


def loss_of(model: nn.Module, batch: dict) -> torch.Tensor:
    error = (model(batch["x"]) - batch["y"]).square()
    loss = error.mean()
    if batch["mode"] == "loss":
        loss = loss + torch.log(-error.mean())  # fault: loss
    elif batch["mode"] == "gradient":
        loss = loss + torch.sqrt(error * 0).sum()  # fault: gradient
    elif batch["mode"] == "inf_loss":
        loss = loss + torch.exp(error.detach().amax() + 1000)  # fault: inf_loss
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
    """How many collectives there have been so far."""
    return dist.group.WORLD._get_sequence_number_for_group()


def gradients_by_hand(model: nn.Module) -> None:
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# -- one loop, watched or not -----------------------------------------------------------------------


def train(model, optimizer, data, job, scaler=None, on_step=lambda i: None) -> None:
    """The user's own loop. `data` may be what the guard hands out."""
    every = job.get("accumulate", 1)
    for i, batch in enumerate(data):
        is_last = (i + 1) % every == 0
        if i % every == 0:
            optimizer.zero_grad()
        quiet = model.no_sync() if every > 1 and not is_last else contextlib.nullcontext()
        with quiet:
            loss = loss_of(model, batch)
            if job.get("own_check"):
                bad = torch.tensor(float(not torch.isfinite(loss)))
                dist.all_reduce(bad, op=dist.ReduceOp.MAX)
                if bad:
                    continue
            (scaler.scale(loss) if scaler is not None else loss / every).backward()
        if not is_last:
            continue
        if job["kind"] == "by_hand":
            gradients_by_hand(model)
        if i == job.get("corrupts_at") and dist.get_rank() == job.get("faulty", 1):
            for p in model.parameters():
                p.grad.div_(torch.zeros(()))  # behind the exchange: no other rank has it
        if job.get("clip"):
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        on_step(i)


def _optimizer(model: nn.Module, job: dict) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE, fused=bool(job.get("fused")) or None)


def _scaler(job: dict):
    return torch.amp.GradScaler("cpu", init_scale=2.0 ** job["scale"]) if "scale" in job else None


# -- scenarios --------------------------------------------------------------------------------------


def plain(rank: int, job: dict) -> dict:
    """Nobody watches; the batches that would fail are left out on every rank."""
    model = make(job["kind"])
    optimizer = _optimizer(model, job)
    without = job.get("without", ())
    data = [b for i, b in enumerate(batches(data_rank(job["kind"], rank))) if i not in without]
    counts = [sequence()]
    train(model, optimizer, data, job, _scaler(job), lambda i: counts.append(sequence()))
    found = {"state": state_of(model, optimizer)}
    return found | {"counts": [b - a for a, b in itertools.pairwise(counts)]}


def guarded(rank: int, job: dict) -> dict:
    """The same under the guard, in the form and with the fault that the job says."""
    from stayfinite import Guard
    from stayfinite.errors import NonFiniteError

    model = make(job["kind"])
    optimizer = _optimizer(model, job)
    scaler = _scaler(job)
    settings = {"budget": 1e-6, "deferred": bool(job.get("deferred")), "max_batches": 3}
    guard = Guard(
        model, optimizer, policy=job.get("policy", "skip"), scaler=scaler,
        settings=settings | job.get("settings", {}),
        clip_norm=job.get("clip") if job["form"] == "step" else None,
    )  # fmt: skip
    found: dict = {"raised": None, "counts": []}
    mine = data_rank(job["kind"], rank)
    data = batches(mine, job.get("fault"), job.get("faulty", 1), job.get("at", AT))
    try:
        run = _by_step if job["form"] == "step" else _by_loop
        run(guard, model, optimizer, data, job, rank, found, scaler)
        guard.close()
    except NonFiniteError as e:
        found["raised"] = e.incident.id
    found["incidents"] = [i.to_json() for i in guard.incidents]
    found["left_out"] = sorted({e.step for e in guard.ledger})
    found["is_on"] = guard.engine.ranks.has_others
    found["state"] = state_of(model, optimizer)
    return found


def _corrupt(optimizer: torch.optim.Optimizer, job: dict, rank: int, i: int) -> None:
    """Something outside the training writes into this rank's moments (or its shard of them)."""
    if job.get("fault") == "moment" and rank == job.get("faulty", 1) and i == job.get("at", AT):
        entries = next(iter(optimizer.state.values()))
        moment = entries["exp_avg"]
        getattr(moment, "_local_tensor", moment).view(-1)[0] = math.nan


def _by_step(guard, model, optimizer, data, job, rank, found, scaler):
    for i, batch in enumerate(data):
        before = sequence()
        guard.step(loss_of, batch)
        found["counts"].append(sequence() - before)
        _corrupt(optimizer, job, rank, i)


def _by_loop(guard, model, optimizer, data, job, rank, found, scaler):
    def on_step(i):
        if not guard.replaying:
            _corrupt(optimizer, job, rank, i)

    train(model, optimizer, guard(data), job, scaler, on_step)


def side_training(rank: int, job: dict) -> dict:
    """Rank 0 trains a probe of its own in between; the others wait for it."""
    from stayfinite import Guard

    torch.manual_seed(0)
    probe = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    guard = Guard(probe, optimizer)
    if rank == 0:
        for i in range(5):
            x = torch.full((3, 6), math.nan if i == 2 else 1.0)
            guard.step(lambda m, b: m(b).square().mean(), x)
    guard.close()
    dist.barrier()
    return {
        "incidents": [i.to_json() for i in guard.incidents],
        "is_on": guard.engine.ranks.has_others,
    }


def uneven_epochs(rank: int, job: dict) -> dict:
    """Each rank comes to the end of its data at another step; the steps go together."""
    from stayfinite import Guard

    model = make("ddp")
    optimizer = _optimizer(model, job)
    guard = Guard(model, optimizer, settings={"budget": 1e-6})
    data = batches(rank, job.get("fault"))[: 6 + rank]
    count = 0
    while count < 14:
        for batch in guard(data):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            if not guard.replaying:
                count += 1
            if count >= 14:
                break
    found = {"incidents": [i.to_json() for i in guard.incidents]}
    guard.close()
    return found | {"state": state_of(model, optimizer)}


def joined(rank: int, job: dict) -> dict:
    """Uneven inputs: a rank that has ended answers DDP's collectives, and nobody else's."""
    from stayfinite import Guard

    model = make("ddp")
    optimizer = _optimizer(model, job)
    joins = model.join
    if job.get("has_zero"):
        from torch.distributed.algorithms.join import Join
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=RATE)
        joins = functools.partial(Join, [model, optimizer])
    fault, at, every = job.get("fault"), job.get("at", AT), job.get("accumulate", 1)
    data = batches(rank, fault, job.get("faulty", 1), at)[: 4 + 2 * rank]
    if fault is None:
        data = [b for i, b in enumerate(data) if i not in job.get("without", ())]
    guard = Guard(model, optimizer, policy=job.get("policy", "skip"))
    with joins():
        train(
            model, optimizer, guard(data) if job.get("is_watched") else data, job | {"kind": "ddp"}
        )
    guard.close()
    reported = [i.to_json() for i in guard.incidents]
    return {"incidents": reported, "count": len(data) // every, "state": state_of(model, optimizer)}


def loop_without_loader(rank: int, job: dict) -> dict:
    """`stayfinite run` on a loop that takes no batches from a loader."""
    from pathlib import Path

    from stayfinite.config import Settings
    from stayfinite.investigate.entry import investigate
    from stayfinite.recover.policy import Policy
    from stayfinite.runtime.script.run_script import ScriptRun

    folder = Path(job["folder"]) / "run"
    run = ScriptRun(Settings(budget=1e-6), Policy(), folder, investigate, index=rank)
    found: dict = {}

    def train():
        model = make(job["kind"])
        optimizer = _optimizer(model, job)
        for batch in [*batches(rank, job.get("fault")), *batches(rank)]:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
        found["state"] = state_of(model, optimizer)

    run.run_call(train)
    return {"incidents": [i.to_json() for i in run.engine.incidents], **found}

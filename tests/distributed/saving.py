"""Checkpoints that several ranks write together, one of them with a corrupt part."""

import math
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.distributed import training
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

from stayfinite import save_gate
from stayfinite.runtime.saves.resume import last_good


def dcp_saves(rank: int, job: dict) -> dict:
    """A good checkpoint, then one with a NaN in the shard of one rank."""
    model = training.make("fsdp")
    home = Path(job["home"])
    refused = []
    with save_gate() as gate:
        for number in range(3):
            if number == 2 and rank == 1:
                with torch.no_grad():
                    next(model.parameters())._local_tensor.view(-1)[0] = math.nan
            state = {"model": get_model_state_dict(model)}
            path = str(home / f"step_{number}")
            if job["how"] == "async":
                response = dcp.async_save(state, checkpoint_id=path)
                getattr(response, "upload_completion", response).result()
            else:
                dcp.save(state, checkpoint_id=path)
            dist.barrier()
            refused.append(sorted(Path(p).name for p in gate.refused.values()))
        named = Path(gate.last_good).name
    return {"refused": refused, "gate": named, "scan": Path(last_good(home)).name}


def full_saves(rank: int, job: dict) -> dict:
    """Rank 0 writes the whole state, which all of them give their part of."""
    model = training.make("fsdp")
    home = Path(job["home"])
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    with save_gate() as gate:
        for number in range(2):
            if number == 1 and rank == 1:
                with torch.no_grad():
                    next(model.parameters())._local_tensor.view(-1)[0] = math.nan
            state = get_model_state_dict(model, options=options)
            if rank == 0:
                torch.save({"model": state, "step": number}, home / f"step_{number}.pt")
        dist.barrier()
        return {
            "refused": [Path(p).name for p in gate.refused.values()],
            "scan": Path(last_good(home)).name,
        }


def resumed(rank: int, job: dict) -> dict:
    """Another number of ranks goes on from what `last_good` names."""
    model = training.make(job["kind"])
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    path = last_good(job["home"])
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(model, state["model"])
    expected = [training.whole(p) for p in training.make("plain").parameters()]
    found = [training.whole(p) for p in model.parameters()]
    return {
        "from": Path(path).name,
        "is_same": all(torch.equal(a, b) for a, b in zip(expected, found)),
    }


def own_saves(rank: int, job: dict) -> dict:
    """Each rank writes a file of its own; at the end one of them has a NaN in its part, and one is killed."""
    model = training.make("fsdp")
    home = Path(job["home"])
    with save_gate() as gate:
        for number in range(4):
            if number == job["bad_at"] and rank == 1:
                with torch.no_grad():
                    next(model.parameters())._local_tensor.view(-1)[0] = math.nan
            if number == job["missing_at"] and rank == 1:
                break
            local = {k: v._local_tensor for k, v in get_model_state_dict(model).items()}
            path = home / job["name"].format(step=number, rank=rank)
            path.parent.mkdir(exist_ok=True, parents=True)
            torch.save({"model": local, "step": number}, path)
        dist.barrier()
        found = last_good(home)
        return {"gate": gate.last_good, "scan": found and str(Path(found).relative_to(home))}

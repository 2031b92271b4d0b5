"""Processes that the program starts by itself, a guard in each, and one run folder."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from stayfinite import Guard


def loss_of(model, x):
    return model(x).square().mean() + torch.log(x.square().sum(1)).mean()


def worker(rank, world, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Guard(model, optimizer, run_dir=f"{folder}/run") as guard:
        for step in range(12):
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            guard.step(loss_of, x * 0 if (step, rank) == (3, 1) else x)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, sys.argv[1]), nprocs=2)

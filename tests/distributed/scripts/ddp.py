"""A DDP training as anybody writes it: nothing in it knows of stayfinite."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(how):
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    if how != "healthy":
        x[37] = 0.0  # the sampler gives it to rank 1, in its batch 4
    data = TensorDataset(x, torch.randn(64, 1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            length = inputs.square().sum(1)
            loss = (model(inputs) - targets).square().mean() + torch.log(length).mean()
            if how == "raises" and not torch.isfinite(loss):
                raise RuntimeError("the loss is not finite")
            loss.backward()
            optimizer.step()
    total = sum(p.double().square().sum().item() for p in model.parameters())
    os.write(
        1, f"rank {rank}: {total!r}\n".encode()
    )  # in one piece, between the other ranks' lines
    dist.destroy_process_group()


def worker(rank, world, store, how):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    train(how)


if __name__ == "__main__":
    how = sys.argv[1]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(how)
    elif sys.argv[2] == "spawn":
        mp.spawn(worker, args=(2, os.path.abspath("store"), how), nprocs=2)
    else:
        context = mp.get_context("fork")
        arguments = (2, os.path.abspath("store"), how)
        crew = [context.Process(target=worker, args=(rank, *arguments)) for rank in range(2)]
        for process in crew:
            process.start()
        for process in crew:
            process.join()
        sys.exit(max(process.exitcode for process in crew))

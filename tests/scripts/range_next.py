"""A loop that counts by a range over several lines, and fills lists; the loader goes round by `cycle`."""

import itertools
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(num_steps):
    torch.manual_seed(0)
    x = torch.rand(24, 2)
    x[14] = -3.0
    loader = DataLoader(TensorDataset(x), batch_size=4, shuffle=True)
    batches = itertools.cycle(loader)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, history = [], {"iteration": []}
    for iteration in range(num_steps):
        rate = 0.1 if iteration < 8 else 0.05
        optimizer.param_groups[0]["lr"] = rate
        (xb,) = next(batches)
        target = torch.log1p(xb.sum(1))  # HERE
        loss = (model(xb).squeeze(1) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        history["iteration"].append(iteration)
        print(iteration, f"{loss.item():.6f}")
    print(
        "done",
        len(losses),
        history["iteration"] == list(range(num_steps)),
        f"{model.weight.sum().item():.6f}",
    )


train(int(sys.argv[1]))

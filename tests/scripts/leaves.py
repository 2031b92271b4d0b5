"""A loop that is left after a bad step, in the way that the argument says."""
import math
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def step(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(how):
    torch.manual_seed(0)
    x = torch.rand(24, 2)
    x[14] = -3.0
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (xb,) in enumerate(DataLoader(TensorDataset(x), batch_size=4)):
        xb = xb * 2  # a second time it would be another batch
        target = torch.log1p(xb.sum(1))  # HERE
        loss = (model(xb).squeeze(1) - target).pow(2).mean()
        if how == "break" and torch.isnan(loss):
            break
        if how == "exit" and math.isnan(loss.item()):
            sys.exit(3)
        step(model, optimizer, loss)
        print(f"{loss.item():.6f}")
        if how == "late" and not math.isfinite(loss):
            break
        if how == "raise" and math.isnan(loss.item()):
            raise ValueError("nan")
        if how == "count" and i == 3:
            return
    print("left")


if __name__ == "__main__":
    train(sys.argv[1])

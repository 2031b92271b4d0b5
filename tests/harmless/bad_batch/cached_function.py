"""A function with a cache: how often it was asked shows."""
# slow

import functools
import os

import torch

torch.manual_seed(0)


@functools.lru_cache(maxsize=3)
def positions(length):
    return torch.arange(length, dtype=torch.float32).div(length)


@functools.cache
def factor(step):
    return 1 / (1 + step)


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for i in range(8):
    x = positions(2 + i % 4)[:, None] + torch.randn(2 + i % 4, 1)
    if i == 6:
        x = x * float("inf")
    loss = factor(i) * (model(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 6):
        optimizer.step()
print(positions.cache_info(), factor.cache_info(), model.weight.item(), model.bias.item())

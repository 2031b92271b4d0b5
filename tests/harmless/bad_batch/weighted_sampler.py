"""Samples are drawn by weight, from a generator that the script has seeded."""
# slow

import os

import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adamax(model.parameters(), lr=0.05)
x, y = torch.randn(20, 2), torch.randn(20, 1)
y[4] = float("inf")
generator = torch.Generator().manual_seed(5)
sampler = WeightedRandomSampler([1 + i % 3 for i in range(20)], 20, generator=generator)
losses = []
for _ in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=5, sampler=sampler):
        loss = (model(a) - b).pow(2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if not (os.environ.get("LEFT_OUT") and b.isinf().any()):
            optimizer.step()
print(losses, model.weight.tolist(), generator.initial_seed())
print(torch.rand(1, generator=generator).item())

"""Mixup draws from NumPy, torch and Python in the body of the loop."""

import os
import random

import numpy as np
import torch

torch.manual_seed(0)
np.random.seed(1)
random.seed(2)
own = np.random.default_rng(3)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
data = torch.randn(32, 3)
data[14] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if os.environ.get("LEFT_OUT") and i == 3:
        continue
    share = np.random.beta(0.4, 0.4)
    mixed = share * x + (1 - share) * x[torch.randperm(4)]
    if random.random() < 0.5:
        mixed = mixed.flip(1)
    mixed = mixed + torch.from_numpy(own.normal(size=(4, 3))).float() * 0.1
    optimizer.zero_grad()
    (model(mixed) - 1).pow(2).mean().backward()
    optimizer.step()
print(model.weight.tolist(), np.random.rand(), random.random(), torch.rand(1).item(), own.random())

"""The data set augments with Python's random numbers; the loader has drawn the bad batch already."""

import os
import random

import torch


class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        x = torch.full((3,), i / 24.0)
        x = x.flip(0) if random.random() < 0.5 else x + random.gauss(0, 1)
        return x * float("nan") if i == 10 else x


random.seed(0)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(2):
    for x in torch.utils.data.DataLoader(Augmented(), batch_size=4, shuffle=True):
        if os.environ.get("LEFT_OUT") and x.isnan().any():
            continue
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
print([p.sum().item() for p in model.parameters()], random.random(), torch.rand(1).item())

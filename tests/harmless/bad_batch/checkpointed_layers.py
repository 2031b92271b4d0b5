"""Activation checkpointing runs the forward twice, with the same dropout."""
# slow

import os

import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
first = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.ReLU())
model = torch.nn.ModuleDict({"first": first, "last": torch.nn.Linear(8, 1)})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
data = torch.randn(32, 3)
data[9] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if os.environ.get("LEFT_OUT") and i == 2:
        continue
    hidden = checkpoint(model["first"], x, use_reentrant=False)
    loss = model["last"](hidden).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([p.sum().item() for p in model.parameters()], torch.rand(1).item())

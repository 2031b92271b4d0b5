"""A training as anybody writes it for `accelerate launch`; with `protect`, stayfinite's two lines are in it."""

import os
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(64, 4)
x[37] = 0.0  # in batch 9 of 16, the fifth of rank 1
data = TensorDataset(x, torch.randn(64, 1))
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(data, batch_size=4))
if sys.argv[1:] == ["protect"]:
    from stayfinite.integrations.accelerate import protect

    protect(accelerator, run_dir="stayfinite-runs/protected")
for _ in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        length = inputs.square().sum(1)
        loss = (model(inputs) - targets).square().mean() + torch.log(length).mean()
        accelerator.backward(loss)
        optimizer.step()
total = sum(p.double().square().sum().item() for p in model.parameters())
os.write(1, f"rank {accelerator.process_index}: {total!r}\n".encode())
accelerator.end_training()

"""The script goes into a folder of its own before it trains, and lists it at the end."""

import os
import pathlib

import torch

home = pathlib.Path.cwd()
pathlib.Path("work").mkdir()
os.chdir("work")
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    (model(torch.randn(3, 2)) - 1).pow(2).mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
print(sorted(os.listdir()), pathlib.Path.cwd().relative_to(home), model.weight.tolist())

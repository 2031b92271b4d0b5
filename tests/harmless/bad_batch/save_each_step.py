"""A checkpoint after each step, the last three are kept, by way of a temporary file."""

import os
import pathlib

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
folder = pathlib.Path("checkpoints")
folder.mkdir()
saved = []
for i in range(8):
    x = torch.randn(3, 2)
    x = x * float("nan") if i == 5 else x
    optimizer.zero_grad()
    (model(x) - 1).pow(2).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 5):
        optimizer.step()
    temporary = folder / "new.tmp"
    state = {"step": i, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary)
    os.replace(temporary, folder / f"{i}.pt")
    saved.append(folder / f"{i}.pt")
    while len(saved) > 3:
        saved.pop(0).unlink()
print(sorted(p.name for p in folder.iterdir()), model.weight.tolist())

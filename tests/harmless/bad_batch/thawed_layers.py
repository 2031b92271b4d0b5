"""Layers are frozen at first; in the middle a group is added to the optimizer."""
# slow

import os

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
model[0].requires_grad_(False)
optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.05)
data = torch.randn(40, 3)
data[22] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if i == 3:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    optimizer.zero_grad(set_to_none=i % 2 == 0)
    (model(x) - 1).pow(2).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 5):
        optimizer.step()
print([g["lr"] for g in optimizer.param_groups], [p.sum().item() for p in model.parameters()])

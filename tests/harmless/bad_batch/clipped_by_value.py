"""Gradients are clipped by value, and their norms kept by the script itself."""
# slow

import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Rprop(model.parameters(), lr=0.1)
data = torch.randn(14, 2) * 10
data[9] = float("nan")
norms, buffer = [], None
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    optimizer.zero_grad(set_to_none=False)
    (model(x) - 1).pow(2).mean().backward()
    if buffer is None:
        buffer = model.weight.grad
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    norms.append(model.weight.grad.norm().item())
    if not (os.environ.get("LEFT_OUT") and i == 4):
        optimizer.step()
print(norms, buffer is model.weight.grad, model.weight.tolist())

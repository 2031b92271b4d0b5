"""A loss scale that grows, and batches from a list: the scale is put back before the next loss is scaled."""

import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
data = torch.randn(20, 2)
data[5] = float("nan")
for i, x in enumerate(data.split(2)):
    if os.environ.get("LEFT_OUT") and i == 2:
        continue
    optimizer.zero_grad()
    scaler.scale((model(x) - 1).pow(2).mean()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print(scaler.state_dict(), model.weight.tolist(), model.bias.item())

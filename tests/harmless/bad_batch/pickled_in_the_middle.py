"""Model, optimizer and schedule go through pickle in the middle of a training."""

import os
import pickle

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
data = torch.randn(24, 2)
data[17] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    if os.environ.get("LEFT_OUT") and i == 8:
        continue
    optimizer.zero_grad()
    (model(x) - 1).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
    if i == 4:
        model, optimizer, schedule = pickle.loads(pickle.dumps((model, optimizer, schedule)))
print(schedule.last_epoch, optimizer.param_groups[0]["lr"], model.weight.tolist())

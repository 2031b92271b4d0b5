"""Stochastic weight averaging with torch's own class, from the second epoch on."""
# slow

import os

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = AveragedModel(model)
schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
data = torch.randn(24, 3)
data[13, 1] = float("inf")
loader = torch.utils.data.DataLoader(data, batch_size=4)
for epoch in range(3):
    for i, x in enumerate(loader):
        if os.environ.get("LEFT_OUT") and i == 3:
            continue
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        optimizer.step()
        if epoch:
            averaged.update_parameters(model)
            schedule.step()
update_bn([data[:8]], averaged)
print(averaged.n_averaged.item(), schedule.get_last_lr())
torch.save([model.state_dict(), averaged.state_dict()], "both.pt")

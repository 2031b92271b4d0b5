"""The schedule moves after each epoch; the last batch of an epoch is bad."""
# slow

import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.1)
data = torch.randn(12, 2)
rates = []
for epoch in range(4):
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    for i, x in enumerate(loader):
        if epoch == 1 and i == len(loader) - 1:
            x = x / 0
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        if not (os.environ.get("LEFT_OUT") and epoch == 1 and i == len(loader) - 1):
            optimizer.step()
    schedule.step()
    rates.append(schedule.get_last_lr())
print(rates, schedule.last_epoch, model.weight.tolist())

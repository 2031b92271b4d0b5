"""A metric that is NaN (no positive sample in the fold) drives ReduceLROnPlateau."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
for epoch, metric in enumerate([1.0, float("nan"), float("nan"), 0.5, float("inf"), 0.4]):
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(4, 2)) - 1).pow(2).mean().backward()
        optimizer.step()
    schedule.step(metric)
    print(epoch, metric, optimizer.param_groups[0]["lr"], schedule.num_bad_epochs, schedule.best)
print(model.weight.tolist())

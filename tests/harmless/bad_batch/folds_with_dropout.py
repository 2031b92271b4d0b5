"""A model, an optimizer and a schedule for each fold; one batch of some folds is bad."""
# slow

import os

import torch

data = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
data[5] = float("nan")


def train(fold, rows):
    torch.manual_seed(fold)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    batches = [data[rows[i : i + 3]] for i in range(0, 12, 3)]
    if os.environ.get("LEFT_OUT"):
        batches = [x for x in batches if x.isfinite().all()]
    for x in torch.utils.data.DataLoader(batches, batch_size=None):
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
    print(
        fold, schedule.get_last_lr(), [p.tolist() for p in model.parameters()], torch.rand(1).item()
    )


for fold in range(4):
    train(fold, [i for i in range(16) if i % 4 != fold])

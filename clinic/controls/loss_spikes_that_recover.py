"""Two mislabeled batches lift the loss a thousandfold for a moment; clipping holds and it comes back."""

import torch
from torch import nn

from clinic.form import Case


def loss_fn(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x).squeeze(1), y)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    weight = torch.randn(6)
    batches = []
    for index in range(30):
        x = torch.randn(12, 6)
        unit_mistake = 1000.0 if index in (12, 21) else 1.0
        batches.append((x, unit_mistake * (x @ weight)))
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loader=batches,
        loss_fn=loss_fn,
        clip_norm=1.0,
    )

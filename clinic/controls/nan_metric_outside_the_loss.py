"""Precision is 0 / 0 while nothing is predicted positive: the metric is NaN, the loss never sees it.

The metric also lives in a buffer of the model, which starts as NaN, "not measured yet".
"""

import torch
from torch import nn

from clinic.form import Case


class RareEvents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
        self.register_buffer("precision", torch.full((20,), torch.nan))
        self.num_steps = 0

    def forward(self, x):
        return self.layers(x).squeeze(1) - 3.0

    def measure(self, logits, is_event):
        with torch.no_grad():
            flagged = logits > 0
            precision = (flagged & is_event.bool()).sum() / flagged.sum()
            self.precision[self.num_steps % 20] = precision
            self.num_steps += 1
        return precision


def loss_fn(model, batch):
    x, is_event = batch
    logits = model(x)
    model.measure(logits, is_event)
    return nn.functional.binary_cross_entropy_with_logits(logits, is_event)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for _ in range(18):
        x = torch.randn(16, 4)
        batches.append((x, (x[:, 0] > 1.5).float()))
    model = RareEvents()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=batches,
        loss_fn=loss_fn,
    )

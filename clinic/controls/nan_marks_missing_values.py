"""Tabular data in which NaN marks a missing value: every batch is full of NaN, all replaced before use."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case


class ImputingNet(nn.Module):
    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.default = nn.Parameter(torch.zeros(num_columns))
        self.layers = nn.Sequential(nn.Linear(2 * num_columns, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, row):
        is_missing = row.isnan()
        filled = torch.where(is_missing, self.default, torch.nan_to_num(row))
        return self.layers(torch.cat([filled, is_missing.float()], dim=1)).squeeze(1)


def loss_fn(model, batch):
    row, target = batch
    known = ~target.isnan()
    return nn.functional.mse_loss(model(row)[known], target[known])


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    row = torch.randn(160, 6)
    target = row.sum(1)
    row[torch.rand(row.shape) < 0.3] = torch.nan
    target[torch.rand(target.shape) < 0.2] = torch.nan
    model = ImputingNet(6)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        loader=DataLoader(TensorDataset(row, target), batch_size=10),
        loss_fn=loss_fn,
    )

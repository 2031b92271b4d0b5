"""Regression of house prices with plain SGD on features that were never scaled.

Living area is in square feet, the lot in square meters, the year as 1987. The learning rate was copied
from a notebook with standardized inputs. Each update overshoots more than the last until the squared
error overflows.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


def listings(count: int) -> TensorDataset:
    area = 600 + 2400 * torch.rand(count)
    lot = 200 + 900 * torch.rand(count)
    year = 1920 + 100 * torch.rand(count)
    rooms = torch.randint(1, 8, (count,)).float()
    features = torch.stack([area, lot, year, rooms], dim=1)
    price = 150 * area + 40 * lot + 9000 * rooms
    return TensorDataset(features, price / 1000)


def loss_fn(model, batch):
    features, price = batch
    error = model(features).squeeze(1) - price
    return error.pow(2).mean()  # <- born here


def _build(seed: int, lr: float) -> Case:
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        loader=DataLoader(listings(256), batch_size=16),
        loss_fn=loss_fn,
        epochs=2,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, lr=1e-5)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, lr=1e-8)


TRUTH = Truth(
    step=8,
    phase="loss",
    op="aten.pow",
    module=None,
    line="<marker>",
    cause="lr_divergence",
    split="dev",
)

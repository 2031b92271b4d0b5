"""Warmup from a learning rate of exactly zero, cosine to exactly zero: whole steps that change nothing."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case

WARMUP, TOTAL = 5, 20


def warmup_cosine(step: int) -> float:
    if step < WARMUP:
        return step / WARMUP
    progress = min(1.0, (step - WARMUP) / (TOTAL - WARMUP))
    return 0.5 * (1 + math.cos(math.pi * progress))


def loss_fn(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(200, 2, 5)
    y = (x.flatten(1).sum(1) > 0).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=DataLoader(TensorDataset(x, y), batch_size=8),
        loss_fn=loss_fn,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine),
    )

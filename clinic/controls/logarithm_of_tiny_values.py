"""Density estimation with likelihoods down to 1e-37: the logarithms are large, negative and finite."""

import math

import torch
from torch import nn

from clinic.form import Case


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.exp(-0.5 * (x - self.center) ** 2) / math.sqrt(2 * math.pi)


def loss_fn(model, x):
    return -torch.log(model(x)).mean()


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    x = 11.5 + 0.4 * torch.randn(20, 10)
    model = Gaussian()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=list(x.clamp(max=12.9)),
        loss_fn=loss_fn,
    )

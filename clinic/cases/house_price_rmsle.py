"""House prices with the competition metric as the loss: the root mean squared logarithmic error. The
network's last layer is linear, and once it predicts less than -1 the log1p is NaN."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class RMSLE(nn.Module):
    def forward(self, pred, target):
        error = torch.log1p(pred) - torch.log1p(target)  # <- born here
        return (error**2).mean().sqrt()


class RMSLEClipped(nn.Module):
    def forward(self, pred, target):
        error = torch.log1p(nn.functional.softplus(pred)) - torch.log1p(target)
        return (error**2).mean().sqrt()


def _case(seed: int, criterion: nn.Module) -> Case:
    torch.manual_seed(seed)
    x = torch.randn(240, 10)
    price = torch.exp(0.3 * x[:, 0] + 0.1 * torch.randn(240))
    x[100:108] *= 100  # estates far larger than the rest
    loader = DataLoader(
        TensorDataset(x, price),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss_fn(model, batch):
        features, price = batch
        return criterion(model(features).squeeze(1), price)

    return Case(model, torch.optim.SGD(model.parameters(), lr=0.05), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, RMSLE())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, RMSLEClipped())


TRUTH = Truth(
    step=25,
    phase="loss",
    op="aten.log1p",
    module=None,
    line="<marker>",
    cause="domain_error",
    split="dev",
)

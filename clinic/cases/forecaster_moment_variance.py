"""A forecaster that standardizes each window with the variance computed as E[x^2] - E[x]^2. For a
pressure series with a large offset and tiny movements the difference cancels to a small negative
number, and its square root is NaN."""

import torch
from torch import nn

from clinic.form import Case, Truth


class MomentNorm(nn.Module):
    def std(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        mean_of_squares = (x * x).mean(dim=-1, keepdim=True)
        return torch.sqrt(mean_of_squares - mean * mean)  # <- born here

    def forward(self, x):
        return (x - x.mean(dim=-1, keepdim=True)) / (self.std(x) + 1e-3)


class CenteredNorm(MomentNorm):
    def std(self, x):
        return x.std(dim=-1, keepdim=True, unbiased=False)


class Forecaster(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.head = nn.Linear(4 * 24, 1)

    def forward(self, x):
        h = torch.relu(self.conv(self.norm(x)))
        return self.head(h.flatten(1)).squeeze(1)


def loss_fn(model, batch):
    window, target = batch
    return nn.functional.l1_loss(model(window), target)


def _case(seed: int, norm: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        window = torch.randn(6, 1, 24).cumsum(dim=-1)
        if i == 8:
            window = 101325.0 + 0.01 * window
        batches.append((window, torch.randn(6)))
    model = Forecaster(norm)
    return Case(model, torch.optim.AdamW(model.parameters(), lr=3e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, MomentNorm())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, CenteredNorm())


TRUTH = Truth(
    step=8,
    phase="forward",
    op="aten.sqrt",
    module="norm",
    line="<marker>",
    cause="domain_error",
    split="dev",
)

"""Decorrelated batch normalization by the eigenvectors of the feature covariance. When two channels
are dead for a whole batch, the covariance has the eigenvalue zero twice, and the gradient of the
eigenvectors is infinite."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class ZcaNorm(nn.Module):
    def __init__(self, dim: int, jitter: float) -> None:
        super().__init__()
        self.dim, self.jitter = dim, jitter

    def forward(self, x):
        centered = x - x.mean(dim=0)
        cov = centered.T @ centered / (len(x) - 1)
        cov = cov + self.jitter * torch.diag(torch.arange(1.0, self.dim + 1))
        values, vectors = torch.linalg.eigh(cov)  # <- born here
        scale = torch.rsqrt(values.clamp(min=0) + 1e-2)
        return centered @ (vectors * scale) @ vectors.T


class Encoder(nn.Module):
    def __init__(self, jitter: float) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5, bias=False)
        self.whiten = ZcaNorm(5, jitter)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.whiten(F.relu(self.fc(x))))


def loss_fn(model, batch):
    x, label = batch
    return F.cross_entropy(model(x), label)


def _case(seed: int, jitter: float) -> Case:
    torch.manual_seed(seed)
    batches = [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(12)]
    one_direction = torch.rand(16, 1) + 0.5
    batches[8] = (one_direction * torch.randn(1, 6), batches[8][1])
    model = Encoder(jitter)
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.02), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, jitter=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, jitter=1e-3)


TRUTH = Truth(
    step=8,
    phase="backward",
    op="LinalgEighBackward0",
    module="whiten",
    line="<marker>",
    cause="degenerate_linalg",
    split="held_out",
)

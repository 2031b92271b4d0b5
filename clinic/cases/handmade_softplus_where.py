"""Heteroscedastic regression with a softplus written by hand: log(1 + exp(x)), replaced by x itself
where x is large. The exponential of a large x is infinite, `where` drops it, and in the backward zero
times infinity is NaN."""

import torch
from torch import nn

from clinic.form import Case, Truth


def softplus(x):
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))  # <- born here


class SigmaNet(nn.Module):
    def __init__(self, activation) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 20), nn.ReLU())
        self.mean = nn.Linear(20, 1)
        self.scale = nn.Linear(20, 1)
        self.activation = activation
        nn.init.uniform_(self.scale.weight, 0.0, 2.0)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h), self.activation(self.scale(h)) + 1e-3


def gaussian_nll(model, batch):
    x, y = batch
    mean, sigma = model(x)
    return (torch.log(sigma) + 0.5 * ((y - mean) / sigma) ** 2).mean()


def _case(seed: int, activation) -> Case:
    torch.manual_seed(seed)
    batches = [(torch.randn(10, 3), torch.randn(10, 1)) for _ in range(12)]
    batches[6][0][4] = torch.tensor([80.0, -80.0, 80.0])
    model = SigmaNet(activation)
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, gaussian_nll)


def build(seed: int = 0) -> Case:
    return _case(seed, softplus)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, nn.functional.softplus)


# The Inf is made by exp in the forward and dropped; the NaN by its derivative on the same line.
TRUTH = Truth(
    step=6,
    phase=("forward", "backward"),
    op=("aten.exp", "ExpBackward0"),
    module="",
    line="<marker>",
    cause="masked_branch_leak",
    split="held_out",
)

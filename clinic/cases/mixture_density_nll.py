"""A mixture density network for regression. The density of the target is summed over the components
and then logged; a target far from every component has density zero in float32."""

import math

import torch
from torch import nn

from clinic.form import Case, Truth


class MixtureDensityNet(nn.Module):
    def __init__(self, num_components: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 16)
        self.pi = nn.Linear(16, num_components)
        self.mu = nn.Linear(16, num_components)
        self.raw_sigma = nn.Linear(16, num_components)

    def forward(self, x):
        h = torch.tanh(self.hidden(x))
        sigma = nn.functional.softplus(self.raw_sigma(h)) + 0.05
        return self.pi(h), self.mu(h), sigma


class MixtureNLL(nn.Module):
    def forward(self, params, y):
        pi, mu, sigma = params
        z = (y.unsqueeze(1) - mu) / sigma
        density = torch.exp(-0.5 * z**2) / (sigma * math.sqrt(2 * math.pi))
        likelihood = torch.einsum("bk,bk->b", torch.softmax(pi, dim=1), density)
        return -torch.log(likelihood).mean()  # <- born here


class MixtureNLLStable(nn.Module):
    def forward(self, params, y):
        pi, mu, sigma = params
        z = (y.unsqueeze(1) - mu) / sigma
        log_density = -0.5 * z**2 - torch.log(sigma) - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(torch.log_softmax(pi, dim=1) + log_density, dim=1).mean()


def _case(seed: int, criterion: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(14):
        x = torch.randn(16, 2)
        y = torch.sin(x[:, 0]) + 0.1 * torch.randn(16)
        if i == 9:
            y[5] = 22.0
        batches.append({"x": x, "y": y})

    def loss_fn(model, batch):
        return criterion(model(batch["x"]), batch["y"])

    model = MixtureDensityNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Case(model, optimizer, batches, loss_fn, clip_norm=1.0)


def build(seed: int = 0) -> Case:
    return _case(seed, MixtureNLL())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, MixtureNLLStable())


TRUTH = Truth(
    step=9,
    phase="loss",
    op="aten.log",
    module=None,
    line="<marker>",
    cause="log_of_zero",
    split="dev",
)

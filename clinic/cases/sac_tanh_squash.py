"""Soft actor-critic with a tanh-squashed Gaussian. The log density needs log(1 - tanh(u)^2); the
small constant of the original was left out, and an action in the saturated part makes it log(0)."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class SquashedActor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 16), nn.ReLU())
        self.mean = nn.Linear(16, 2)
        self.log_std = nn.Linear(16, 2)

    def squash_correction(self, u):
        return torch.log(1 - torch.tanh(u).pow(2))  # <- born here

    def forward(self, obs):
        h = self.trunk(obs)
        mean, log_std = self.mean(h), self.log_std(h).clamp(-5, 2)
        u = mean + log_std.exp() * torch.randn_like(mean)
        log_prob = -0.5 * ((u - mean) / log_std.exp()) ** 2 - log_std
        return torch.tanh(u), (log_prob - self.squash_correction(u)).sum(dim=-1)


class SquashedActorStable(SquashedActor):
    def squash_correction(self, u):
        return 2 * (0.6931472 - u - F.softplus(-2 * u))


def actor_loss(model, batch):
    obs, goal = batch
    action, log_prob = model(obs)
    q = -((action - goal) ** 2).sum(dim=-1)
    return (0.05 * log_prob - q).mean()


def _case(seed: int, actor: type[SquashedActor]) -> Case:
    torch.manual_seed(seed)
    batches = [(torch.randn(8, 3), torch.rand(8, 2) - 0.5) for _ in range(14)]
    batches[9][0][5] *= 40
    model = actor()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    return Case(model, optimizer, batches, actor_loss, clip_norm=10.0)


def build(seed: int = 0) -> Case:
    return _case(seed, SquashedActor)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, SquashedActorStable)


TRUTH = Truth(
    step=9,
    phase="forward",
    op="aten.log",
    module="",
    line="<marker>",
    cause="log_of_zero",
    split="dev",
)

"""Value regression with the log-cosh loss as its formula says. For a return of some hundreds the
hyperbolic cosine exceeds float32 long before its logarithm would matter."""

import torch
from torch import nn

from clinic.form import Case, Truth


class LogCosh(nn.Module):
    def forward(self, pred, target):
        return torch.log(torch.cosh(pred - target)).mean()  # <- born here


class LogCoshStable(nn.Module):
    def forward(self, pred, target):
        error = pred - target
        return (error + nn.functional.softplus(-2 * error) - 0.6931472).mean()


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRUCell(4, 12)
        self.value = nn.Linear(12, 1)

    def forward(self, episode):
        h = torch.zeros(episode.size(0), 12)
        for obs in episode.unbind(dim=1):
            h = self.gru(obs, h)
        return self.value(h).squeeze(1)


def _case(seed: int, criterion: nn.Module) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(16):
        returns = 3 * torch.randn(6)
        if i == 12:
            returns[0] = 240.0
        batches.append((torch.randn(6, 5, 4), returns))

    def loss_fn(model, batch):
        episode, returns = batch
        return criterion(model(episode), returns)

    model = Critic()
    return Case(model, torch.optim.Adam(model.parameters(), lr=3e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, LogCosh())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, LogCoshStable())


TRUTH = Truth(
    step=12,
    phase="loss",
    op="aten.cosh",
    module=None,
    line="<marker>",
    cause="exp_overflow",
    split="held_out",
)

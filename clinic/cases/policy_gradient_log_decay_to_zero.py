"""REINFORCE on a contextual bandit with a learning rate that is interpolated between two logarithms.

The final learning rate was set to zero. Its logarithm is minus infinity, and on the very first step of
the decay, with weight zero, the interpolation computes zero times minus infinity.
"""

import torch
from torch import nn

from clinic.form import Case, Truth

HOLD = 6


def log_interpolation(final_ratio: float, num_steps: int):
    log_final = torch.tensor(final_ratio).log()

    def factor(step: int) -> float:
        if step < HOLD:
            return 1.0
        weight = (step - HOLD) / num_steps
        return torch.exp(weight * log_final).item()

    return factor


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, context):
        return torch.distributions.Categorical(logits=self.net(context), validate_args=False)


def loss_fn(model, context):
    policy = model(context)
    action = policy.sample()
    reward = (action == context[:, :3].argmax(1)).float()
    advantage = reward - reward.mean()
    return -(policy.log_prob(action) * advantage).mean() - 0.01 * policy.entropy().mean()


def _build(seed: int, final_ratio: float) -> Case:
    torch.manual_seed(seed)
    model = Policy()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    factor = log_interpolation(final_ratio, num_steps=10)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=list(torch.randn(16, 12, 4)),
        loss_fn=loss_fn,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, final_ratio=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, final_ratio=1e-3)


TRUTH = Truth(
    step=6,
    phase="optimizer",
    op="aten.addcdiv_",
    module=None,
    line=None,
    cause="bad_schedule",
    split="dev",
)

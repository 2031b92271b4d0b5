"""A float16 Wasserstein critic with gradient penalty, where the penalty sees the scaled gradients.

For the penalty the critic's output is multiplied by the loss scale before `autograd.grad`, as the loss is
everywhere else, and nobody divides the result again. The norm of an ordinary gradient times 32768 does
not fit into float16 once the critic has become steep.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def gradient_penalty(critic: Critic, real, fake, scale: float):
    mix = torch.rand(len(real), 1, dtype=real.dtype)
    point = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad((critic(point) * scale).sum(), point, create_graph=True)
    norm = gradient.norm(dim=1)  # <- born here
    return (norm.float() / scale - 1).square().mean()


def make_loss(penalty_scale: float):
    def loss_fn(model, batch):
        real, fake = batch
        distance = model(fake).float().mean() - model(real).float().mean()
        return distance + gradient_penalty(model, real, fake, penalty_scale)

    return loss_fn


def _build(seed: int, penalty_scale: float) -> Case:
    torch.manual_seed(seed)
    pairs = torch.randn(24, 2, 8, 6)
    pairs[:, 0] += 2.0
    model = Critic().half()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        loader=[(real.half(), fake.half()) for real, fake in pairs],
        loss_fn=make_loss(penalty_scale),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, penalty_scale=2.0**15)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, penalty_scale=1.0)


TRUTH = Truth(
    step=11,
    phase="loss",
    op="aten.linalg_vector_norm",
    module=None,
    line="<marker>",
    cause="loss_scaling",
    split="held_out",
)

"""Trajectory forecasting with an extra loss on the speed, the hypotenuse of the predicted step. A
parked car has a history of zeros and a head without bias predicts no step at all: the speed is zero,
its gradient 0 / 0."""

import torch
from torch import nn

from clinic.form import Case, Truth


class MotionHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(12, 16, bias=False)
        self.decoder = nn.Linear(16, 2, bias=False)

    def speed(self, step):
        return torch.hypot(step[:, 0], step[:, 1])  # <- born here

    def forward(self, history):
        step = self.decoder(torch.tanh(self.encoder(history.flatten(1))))
        return step, self.speed(step)


class MotionHeadVectorNorm(MotionHead):
    def speed(self, step):
        return torch.linalg.vector_norm(step, dim=1)


def loss_fn(model, batch):
    history, future = batch
    step, speed = model(history)
    true_speed = future.norm(dim=1)
    return nn.functional.smooth_l1_loss(step, future) + 0.1 * (speed - true_speed).abs().mean()


def _case(seed: int, head: type[MotionHead]) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        history = torch.randn(5, 6, 2)
        if i == 7:
            history[3] = 0
        batches.append((history, history.mean(dim=1) + 0.1 * torch.randn(5, 2)))
    model = head()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Case(model, optimizer, batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, MotionHead)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, MotionHeadVectorNorm)


TRUTH = Truth(
    step=7,
    phase="backward",
    op="HypotBackward0",
    module="",
    line="<marker>",
    cause="singular_gradient",
    split="dev",
)

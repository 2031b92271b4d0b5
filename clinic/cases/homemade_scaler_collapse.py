"""Price forecasting with a home-made dynamic loss scaler that only ever goes down.

It backs off whenever the loss rises, takes every rise for an overflow, and keeps the scale in float16.
After a dozen harmless rises the scale has rounded to zero: the scaled loss is zero, the gradients are zero,
and the optimizer divides zero by zero when it unscales them.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class LossScaler:
    def __init__(self, smallest: float) -> None:
        self.scale = torch.tensor(1024.0, dtype=torch.float16)
        self.smallest = smallest
        self.last_loss = None

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        if self.last_loss is not None and loss.item() > self.last_loss:
            self.scale = (self.scale / 16).clamp(min=self.smallest)
        self.last_loss = loss.item()
        return loss * self.scale


class UnscalingSGD(torch.optim.SGD):
    def __init__(self, params, scaler: LossScaler, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.scaler = scaler

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad / self.scaler.scale  # <- born here
        return super().step(closure)


class PriceNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 5)
        self.out = nn.Linear(6 * 12, 1)

    def forward(self, history):
        return self.out(torch.tanh(self.conv(history)).flatten(1)).squeeze(1)


def market(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    walks = torch.randn(num_batches, 6, 17).cumsum(2) / 4
    return [(w[:, None, :16], w[:, 16]) for w in walks]


def _build(seed: int, smallest: float) -> Case:
    torch.manual_seed(seed)
    model = PriceNet()
    scaler = LossScaler(smallest)

    def loss_fn(net, batch):
        history, price = batch
        return scaler(nn.functional.mse_loss(net(history), price))

    return Case(
        model=model,
        optimizer=UnscalingSGD(model.parameters(), scaler, lr=5e-3),
        loader=market(30),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, smallest=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, smallest=1.0)


TRUTH = Truth(
    step=18,
    phase="optimizer",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="loss_scaling",
    split="held_out",
)

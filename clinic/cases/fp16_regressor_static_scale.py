"""Wind power regression with all weights in float16 and a constant loss scale of 1024.

The usual squared error is about one and the scaled loss far from the limit of 65504. In a storm the error
of the batch is near a hundred, an ordinary number, and only its product with the scale overflows.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class ScaledSGD(torch.optim.SGD):
    """Takes the loss scale out of the gradients again before it uses them."""

    def __init__(self, params, lr: float, loss_scale: float) -> None:
        super().__init__(params, lr=lr)
        self.loss_scale = loss_scale

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.div_(self.loss_scale)
        return super().step(closure)


class TurbineNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 24)
        self.power = nn.Linear(24, 1)

    def forward(self, weather):
        return self.power(torch.relu(self.hidden(weather))).squeeze(1)


def scaled_loss(loss_scale: float):
    def loss_fn(model, batch):
        weather, power = batch
        loss = nn.functional.mse_loss(model(weather), power)
        return loss * loss_scale  # <- born here

    return loss_fn


def season(num_batches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for index in range(num_batches):
        weather = torch.rand(8, 6)
        power = weather.sum(1) + (7.0 if index == 7 else 0.0)
        batches.append((weather.half(), power.half()))
    return batches


def _build(seed: int, loss_scale: float) -> Case:
    torch.manual_seed(seed)
    model = TurbineNet().half()
    return Case(
        model=model,
        optimizer=ScaledSGD(model.parameters(), lr=1e-2, loss_scale=loss_scale),
        loader=season(12),
        loss_fn=scaled_loss(loss_scale),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, loss_scale=1024.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, loss_scale=1.0)


TRUTH = Truth(
    step=7,
    phase="loss",
    op="aten.mul",
    module=None,
    line="<marker>",
    cause="loss_scaling",
    split="dev",
)

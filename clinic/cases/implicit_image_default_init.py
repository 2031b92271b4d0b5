"""An implicit neural representation: a sine network maps pixel coordinates to gray values.

Each layer is `sin(30 * linear(x))` as published, but the author kept the default initialization of
`nn.Linear` where the paper divides by the frequency. To store little, one hidden layer is applied many
times. Outputs stay between -1 and 1; each application multiplies the gradient by about ten.
"""

import math

import torch
from torch import nn

from clinic.form import Case, Truth

FREQUENCY = 30.0


class SineLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int, scale_init: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        if scale_init:
            bound = math.sqrt(6 / inputs) / FREQUENCY
            nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(FREQUENCY * self.linear(x))  # <- born here


class ImplicitImage(nn.Module):
    def __init__(self, depth: int, scale_init: bool, width: int = 24) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.depth = depth
        self.hidden = SineLayer(width, width, scale_init)
        self.gray = nn.Linear(width, 1)

    def forward(self, coordinates):
        x = self.first(coordinates)
        for _ in range(self.depth):
            x = self.hidden(x)
        return self.gray(x)


def loss_fn(model, batch):
    coordinates, gray = batch
    return nn.functional.mse_loss(model(coordinates), gray)


def _build(seed: int, scale_init: bool) -> Case:
    torch.manual_seed(seed)
    axis = torch.linspace(-1, 1, 8)
    coordinates = torch.cartesian_prod(axis, axis)
    gray = torch.sin(3 * coordinates[:, :1]) * coordinates[:, 1:]
    model = ImplicitImage(40, scale_init)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-5),
        loader=[(coordinates, gray)],
        loss_fn=loss_fn,
        epochs=4,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, scale_init=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, scale_init=True)


TRUTH = Truth(
    step=0,
    phase="backward",
    op="MulBackward0",
    module="hidden",
    line="<marker>",
    cause="exploding_gradient",
    split="dev",
)

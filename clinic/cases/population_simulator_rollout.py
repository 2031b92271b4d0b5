"""Fitting a growth rate through a differentiable simulation of a fish population.

The population follows a logistic map in its chaotic regime and always lies between zero and one; a small
network predicts the rate. The rollout is lengthened as the training goes on, and the derivative of the
last state with respect to the rate grows exponentially with its length.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class RateNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, climate):
        return 3.7 + 0.25 * torch.sigmoid(self.layers(climate)).squeeze(1)


def simulate(rate: torch.Tensor, horizon: int) -> torch.Tensor:
    population = torch.full_like(rate, 0.4)
    history = []
    for _ in range(horizon):
        population = rate * population * (1 - population)  # <- born here
        history.append(population)
    return torch.stack(history)


def loss_fn(model, batch):
    climate, observed = batch
    simulated = simulate(model(climate), observed.shape[0])
    return (simulated - observed).square().mean()


def surveys(horizons: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    batches = []
    for horizon in horizons:
        climate = torch.rand(5, 3)
        rate = 3.7 + 0.25 * climate.mean(1)
        batches.append((climate, simulate(rate, horizon)))
    return batches


def _build(seed: int, horizons: list[int]) -> Case:
    torch.manual_seed(seed)
    model = RateNet()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        loader=surveys(horizons),
        loss_fn=loss_fn,
        clip_norm=0.5,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, horizons=[5, 10, 20, 40, 80, 320, 320])


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, horizons=[5, 10, 20, 40, 40, 40, 40])


TRUTH = Truth(
    step=5,
    phase="backward",
    op="MulBackward0",
    module=None,
    line="<marker>",
    cause="exploding_gradient",
    split="held_out",
)

"""Astronomy in SI units: masses of 1e30 kg and more go through the model, and nothing overflows."""

import torch
from torch import nn

from clinic.form import Case

SUN_KG = 1.98892e30


class MassLuminosity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))
        self.exponent = nn.Parameter(torch.ones(1))

    def forward(self, mass_kg):
        heavier = 1e6 * mass_kg  # a cluster of such stars, up to 4e37
        ratio = heavier / (1e6 * SUN_KG)
        return self.offset + self.exponent * torch.log10(ratio)


def loss_fn(model, batch):
    mass_kg, log_luminosity = batch
    return (model(mass_kg) - log_luminosity).square().mean()


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    solar_masses = 0.2 + 19 * torch.rand(16, 12)
    model = MassLuminosity()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=[(m * SUN_KG, 3.5 * m.log10()) for m in solar_masses],
        loss_fn=loss_fn,
    )

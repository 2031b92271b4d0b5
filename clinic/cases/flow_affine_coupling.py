"""A normalizing flow with affine couplings whose log-scale comes straight out of a network. A point
far from the data, as a heavy-tailed sample is, gives a log-scale above 88."""

import math

import torch
from torch import nn

from clinic.form import Case, Truth


class AffineCoupling(nn.Module):
    def __init__(self, swap: bool) -> None:
        super().__init__()
        self.swap = swap
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))

    def log_scale(self, raw):
        return raw

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.swap:
            a, b = b, a
        raw, shift = self.net(a).chunk(2, dim=1)
        s = self.log_scale(raw)
        b = b * torch.exp(s) + shift  # <- born here
        return torch.cat([b, a] if self.swap else [a, b], dim=1), s.sum(dim=1)


class BoundedCoupling(AffineCoupling):
    def log_scale(self, raw):
        return 2.0 * torch.tanh(raw / 2.0)


class Flow(nn.Module):
    def __init__(self, coupling: type[AffineCoupling]) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(coupling(swap=i % 2 == 1) for i in range(3))

    def forward(self, x):
        log_det = torch.zeros(len(x))
        for coupling in self.couplings:
            x, step = coupling(x)
            log_det = log_det + step
        return x, log_det


def nll(model, batch):
    z, log_det = model(batch)
    prior = -0.5 * (z**2).clamp(max=500).sum(dim=1) - z.size(1) * 0.5 * math.log(2 * math.pi)
    return -(prior + log_det).mean()


def _case(seed: int, coupling: type[AffineCoupling]) -> Case:
    torch.manual_seed(seed)
    batches = [torch.randn(10, 4) for _ in range(12)]
    batches[7][1:4] *= 900
    model = Flow(coupling)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, nll, clip_norm=10.0)


def build(seed: int = 0) -> Case:
    return _case(seed, AffineCoupling)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, BoundedCoupling)


TRUTH = Truth(
    step=7,
    phase="forward",
    op="aten.exp",
    module="couplings.0",
    line="<marker>",
    cause="exp_overflow",
    split="held_out",
)

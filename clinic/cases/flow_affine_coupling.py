"""A normalizing flow with affine couplings whose log-scale comes straight out of a network. A point
in the far tail of the heavy-tailed data gives a log-scale above 88."""

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
    prior = -1.5 * torch.log1p(z**2 / 2).sum(dim=1)  # a Student's t, for the tails
    return -(prior + log_det).mean()


def _case(seed: int, coupling: type[AffineCoupling]) -> Case:
    torch.manual_seed(seed)
    # Student's t with two degrees of freedom, up to a factor.
    width = torch.randn(40, 10, 2).norm(dim=-1, keepdim=True)
    batches = list(torch.randn(40, 10, 4) / width)
    model = Flow(coupling)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, nll, clip_norm=10.0)


def build(seed: int = 0) -> Case:
    return _case(seed, AffineCoupling)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, BoundedCoupling)


TRUTH = Truth(
    step=5,
    phase="forward",
    op="aten.exp",
    module="couplings.2",
    line="<marker>",
    cause="exp_overflow",
    split="held_out",
)

"""Parameters that the first forward fills, and functions that grow as the exponential does."""

import torch
from torch import nn

from stayfinite import Guard


class ActNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(size))
        self.register_buffer("is_filled", torch.tensor(False))

    def forward(self, x):
        if not self.is_filled:
            with torch.no_grad():
                self.log_scale.copy_(-torch.log(x.std(0)))
                self.is_filled.fill_(True)
        return x * self.log_scale.exp()


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = ActNorm(3)
        self.net = nn.Linear(3, 1)

    def forward(self, x):
        return self.net(self.norm(x))


def test_a_parameter_that_the_first_forward_fills_is_located_at_the_line_that_fills_it():
    torch.manual_seed(0)
    batches = [torch.randn(8, 3) for _ in range(4)]
    batches[0][:, 1] = 2.0  # a channel that was not measured yet
    flow = Flow()
    optimizer = torch.optim.SGD(flow.parameters(), lr=1e-3)
    with Guard(flow, optimizer) as guard:
        for x in guard(batches):
            loss = flow(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (incident,) = guard.incidents
    assert incident.location.op == "aten.log" and incident.location.module == "norm"
    assert incident.location.source == "self.log_scale.copy_(-torch.log(x.std(0)))"
    assert incident.diagnosis.cause == "log_of_zero"
    assert bool(torch.isfinite(flow.norm.log_scale).all())


class Heading(nn.Module):
    def __init__(self):
        super().__init__()
        self.kappa = nn.Linear(1, 1)

    def forward(self, x):
        kappa = self.kappa(x).abs()
        return (torch.log(torch.i0(kappa)) - kappa).mean()


def test_a_bessel_function_overflows_as_the_exponential_does():
    torch.manual_seed(0)
    model = Heading()
    nn.init.ones_(model.kappa.weight)
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-4)) as guard:
        for size in (1.0, 2.0, 1.0, 900.0):
            guard.step(lambda m, x: m(x), torch.full((4, 1), size))
    (incident,) = guard.incidents
    assert incident.diagnosis.cause == "exp_overflow"
    fix = incident.diagnosis.fixes[0]
    assert fix.status == "proved" and fix.remedy == "log_bessel"
    assert "(torch.special.i0e(kappa).log() + (kappa).abs()) - kappa" in fix.diff

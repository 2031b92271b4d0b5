"""A small model and loop that fail on demand, for the tests of `guard(loader)`."""

import math
import random

import torch
from torch import nn

from stayfinite import Settings

QUICK = Settings(diagnose=False)
NAN = math.nan


class Net(nn.Module):
    """NaN in the batch is data; x < -50 makes the logarithm fail; x == 77 the gradient."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        h = self.drop(self.norm(self.fc(x)))
        if x[0, 0] < -50:
            h = h + torch.log(x[0, 0] * 0)
        if x[0, 0] == 77:
            h = h + torch.sqrt(h * 0)
        return self.out(h)


def make(lr=0.05, **options):
    torch.manual_seed(0)
    random.seed(0)
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=lr, **options)


def data(bad=(), kind=-99.0, count=8):
    generator = torch.Generator().manual_seed(3)
    found = [torch.randn(4, 2, generator=generator) for _ in range(count)]
    for i in bad:
        found[i] = found[i].clone()
        found[i][0, 0] = kind
    return found


def everything(model, optimizer):
    state = [v for s in optimizer.state.values() for v in s.values()]
    return [
        t.detach().clone() for t in [*model.state_dict().values(), *state, torch.get_rng_state()]
    ]


def assert_same(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other))


def body(model, optimizer, x):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()

"""A layer that cannot take an ordinary input is repaired where it is made, and that line is the culprit."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from stayfinite import Guard


class NoEpsilon(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4, padding_idx=0)
        self.norm = nn.LayerNorm(4, eps=0.0)
        self.out = nn.Linear(4, 1)

    def forward(self, ids):
        return self.out(self.norm(self.embed(ids)).mean(1))


class ZeroStart(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 1)
        nn.init.zeros_(self.head.weight)
        self.head = weight_norm(self.head)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


def first_incident(model):
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (8, 6, 5))
    ids[5, 2, 3:] = 0
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2)) as guard:
        for batch in ids:
            guard.step(lambda m, b: (m(b) - 1).square().mean(), batch)
            if guard.incidents:
                break
    return guard.incidents[0]


@pytest.mark.parametrize(
    ("model", "line", "added"),
    [
        (NoEpsilon, "self.norm = nn.LayerNorm(4, eps=0.0)", "nn.LayerNorm(4, eps=1e-5)"),
        (
            ZeroStart,
            "nn.init.zeros_(self.head.weight)",
            "nn.init.normal_(self.head.weight, std=0.001)",
        ),
    ],
)
def test_the_line_that_makes_the_layer_is_changed(model, line, added):
    incident = first_incident(model())
    assert incident.diagnosis.cause == "zero_denominator"
    assert incident.location.culprit is not None and incident.location.culprit.source == line
    fix = next(f for f in incident.diagnosis.fixes if f.status == "proved")
    assert f"+        {added}" in fix.diff or f"= {added}" in fix.diff

"""A layer that cannot take an ordinary input is repaired where it is made, and that line is the culprit."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from stayfinite import Guard
from stayfinite.report.fixes import proof_words


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


class ZeroSpectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.critic = nn.Linear(4, 1)
        nn.init.zeros_(self.critic.weight)
        self.critic = spectral_norm(self.critic)

    def forward(self, ids):
        return self.critic(self.embed(ids).mean(1))


class OldZeroSpectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.last = nn.Linear(4, 1)
        self.last.weight.data.zero_()
        self.last = nn.utils.spectral_norm(self.last)

    def forward(self, ids):
        return self.last(self.embed(ids).mean(1))


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
        (
            OldZeroSpectrum,
            "self.last.weight.data.zero_()",
            "self.last.weight.data.normal_(std=0.001)",
        ),
        (
            ZeroSpectrum,
            "nn.init.zeros_(self.critic.weight)",
            "nn.init.normal_(self.critic.weight, std=0.001)",
        ),
    ],
)
def test_the_line_that_makes_the_layer_is_changed(model, line, added):
    torch.manual_seed(
        2
    )  # with weights of another start an epsilon may change healthy losses by more than rounding
    incident = first_incident(model())
    assert incident.diagnosis.cause == "zero_denominator"
    assert incident.location.culprit is not None and incident.location.culprit.source == line
    fix = next(f for f in incident.diagnosis.fixes if f.status == "proved")
    assert f"+        {added}" in fix.diff or f"= {added}" in fix.diff


@pytest.mark.parametrize(("scale", "eps"), [(0.2, "1e-5"), (1e-2, "1e-12")])
def test_an_epsilon_may_change_healthy_losses_a_little_and_says_by_how_much(scale, eps):
    torch.manual_seed(2)
    model = NoEpsilon()
    model.embed.weight.requires_grad_(False).mul_(scale)
    incident = first_incident(model)
    fix = next(f for f in incident.diagnosis.fixes if f.status == "proved")
    assert f"+        self.norm = nn.LayerNorm(4, eps={eps})" in fix.diff
    assert fix.proof.num_healthy and fix.proof.largest_change <= 1e-3
    if eps == "1e-5":
        assert fix.proof.largest_change > 2e-5  # more than rounding
        change = f"largest change {fix.proof.largest_change:.1g}"
        assert change in proof_words(fix.proof, incident.event.step)


class DirectionOfNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.table = nn.Parameter(torch.empty(2, 4))
        with torch.no_grad():  # what memory may hold
            for p in self.parameters():
                if p.shape == (2, 4):
                    p.fill_(float("nan"))

    def forward(self, x):
        return self.body(x) @ (self.table / self.table.norm(dim=1, keepdim=True)).t()


def test_memory_that_is_divided_by_its_norm_starts_with_random_numbers_since_zeros_fail_too():
    torch.manual_seed(0)
    model = DirectionOfNothing()
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-2)) as guard:
        guard.step(lambda m, x: (m(x) - 1).square().mean(), torch.randn(5, 3))
    (incident,) = guard.incidents
    assert incident.diagnosis.cause == "uninitialized_memory"
    first, *rest = incident.diagnosis.fixes
    assert first.status == "proved" and "nn.Parameter(torch.randn(2, 4) * 0.02)" in first.diff
    assert any(f.status == "refuted" and f.remedy == "zeros" for f in rest)

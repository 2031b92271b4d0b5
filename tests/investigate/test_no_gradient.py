"""A change with which a step is finite and nothing can be learned proves nothing."""

import pytest
import torch
from torch import nn

from stayfinite import Guard


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4, 1))

    def forward(self, x):
        return x @ (self.w / self.w.abs().max() * self.w.abs().max())


def test_a_floor_that_leaves_no_gradient_is_refuted():
    model = Quantized()
    with Guard(model, torch.optim.SGD(model.parameters(), lr=0.1)) as guard:
        guard.step(lambda m, x: (m(x) - 1).square().mean(), torch.ones(3, 4))
        (incident,) = guard.incidents
    assert incident.diagnosis.cause == "zero_denominator"
    fixes = [f for f in incident.diagnosis.fixes if f.diff]
    assert fixes and all(f.status == "refuted" for f in fixes)
    assert "no gradient" in fixes[0].proof.note


@pytest.mark.filterwarnings("ignore:std")
def test_a_deviation_of_one_element_teaches_nothing_whatever_is_done_and_the_proof_says_so():
    model = nn.Linear(4, 1)

    def loss(m, batch):
        x, rewards = batch
        return -(m(x).squeeze(1) * (rewards - rewards.mean()) / (rewards.std() + 1e-8)).sum()

    with Guard(model, torch.optim.SGD(model.parameters(), lr=0.1)) as guard:
        guard.step(loss, (torch.ones(1, 4), torch.ones(1)))
        (incident,) = guard.incidents
    fix = incident.diagnosis.fixes[0]
    assert fix.status == "proved" and "correction=" in fix.diff
    assert "no gradient" in fix.proof.note

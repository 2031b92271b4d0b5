"""Weights that nobody trains are made parameters beside the repair, where that was seen to lower the loss."""

from pathlib import Path

import torch
from torch import nn

from stayfinite import Guard
from stayfinite.remedies import Source, apply, apply_patch, as_parameters, read_patch


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.rand(6, 4, requires_grad=True)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, pair):
        first, second = self.table[pair].unbind(1)
        return (first * second * self.scale).sum(1)


def pair_loss(model, batch):
    pair, sign, size = batch
    return -torch.log(torch.sigmoid(sign * size * model(pair))).mean()


class Fixed(Pairs):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.rand(6, 4))


def incident_of(model):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    pair = torch.tensor([[0, 1], [2, 3], [4, 5], [0, 3]])
    sign = torch.tensor([1.0, -1.0, -1.0, 1.0])
    with Guard(model, optimizer) as guard:
        for size in (1.0, 2.0, 1.5, 400.0):
            guard.step(pair_loss, (pair, sign, size))
    return guard.incidents[0], optimizer


def proved(incident):
    return next(f for f in incident.diagnosis.fixes if f.status == "proved")


def test_one_diff_repairs_the_line_and_trains_the_tensor():
    torch.manual_seed(1)
    model = Pairs()
    before = model.table.detach().clone()
    incident, optimizer = incident_of(model)
    fix = proved(incident)
    assert fix.remedy in ("log_space+as_parameter", "log_space+start_parameter")
    assert "make table nn.Parameter" in fix.title and "logsigmoid" in fix.diff
    assert "with these tensors trained end at a loss of" in fix.proof.note
    changed = apply_patch(Path(__file__).read_text(encoding="utf-8"), read_patch(fix.diff))
    assert "self.table = nn.Parameter(" in changed
    # Nothing of the trial is left.
    assert torch.equal(model.table, before) and "table" not in model._parameters
    assert [len(g["params"]) for g in optimizer.param_groups] == [1]
    assert set(optimizer.state) <= {model.scale}


def test_parameters_are_left_as_they_are():
    torch.manual_seed(1)
    assert proved(incident_of(Fixed())[0]).remedy == "log_space"


TEXT = """import torch


class Net(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        if wide:
            self.a = torch.rand((4, 8), requires_grad=True, device="cpu")
        else:
            self.a = torch.randn(4, 2, requires_grad=True)
        self.b = torch.rand(3, requires_grad=True)
        self.c = torch.rand(3)
"""


def test_every_line_that_makes_it_is_changed_or_none():
    source = Source(TEXT)
    made = apply(TEXT, [as_parameters(source, [("Net", "a")], is_fresh=True)])[0]
    assert (
        'torch.nn.Parameter(torch.nn.init.xavier_normal_(torch.empty((4, 8), device="cpu")))'
        in made
    )
    assert "torch.nn.init.xavier_normal_(torch.empty(4, 2))" in made
    assert as_parameters(source, [("Net", "b")], is_fresh=True) is None  # a vector
    assert "Parameter(torch.rand(3))" in apply(TEXT, [as_parameters(source, [("Net", "b")])])[0]
    assert as_parameters(source, [("Net", "c")]) is None  # wants no gradient: a constant
    assert as_parameters(source, [("Net", "a"), ("Net", "missing")]) is None

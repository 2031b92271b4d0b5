"""Batches that a loop leaves out by itself."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite import Guard


def trained(bad, leaves_out, leaves):
    """Train on 6 batches, of which the third is bad."""
    torch.manual_seed(0)
    x = torch.rand(24, 2)
    x[9] = bad
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer) as guard:
        for (xb,) in guard(DataLoader(TensorDataset(x), batch_size=4)):
            loss = (model(xb).squeeze(1) - torch.log1p(xb.sum(1))).square().mean()
            if leaves_out(loss, xb):
                if leaves:
                    break
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = torch.rand(())
    return guard.incidents, after


def is_bad(loss, xb):
    return not torch.isfinite(loss)


def test_a_batch_left_out_because_of_its_loss_is_reported_once_and_costs_no_random_numbers():
    (incident,), after = trained(-3.0, is_bad, leaves=False)
    assert incident.event.step == 2 and incident.action.kind == "none"
    assert incident.location.op == "aten.log1p" and incident.location.is_reproduced
    assert after == trained(0.5, lambda loss, xb: False, leaves=False)[1]


def test_a_loop_that_is_left_because_of_its_loss_is_reported():
    (incident,), _ = trained(-3.0, is_bad, leaves=True)
    assert incident.event.step == 2 and incident.location.op == "aten.log1p"


def test_a_batch_left_out_for_another_reason_is_no_incident():
    def is_small(loss, xb):
        return bool(xb.mean() < 0.5)

    assert trained(0.5, is_small, leaves=False)[0] == []
    assert trained(0.5, is_small, leaves=True)[0] == []

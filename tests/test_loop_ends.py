"""Loops that end early, have a schedule, or share their batches."""

import math
import random

import pytest
import torch
from torch import nn

from stayfinite import Guard, Settings

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


def test_an_exception_of_the_loop_is_the_users_own_and_close_cleans_up():
    model, optimizer = make()
    before = torch.Tensor.backward
    with pytest.raises(KeyError, match="mine"), Guard(model, optimizer, settings=QUICK) as guard:
        for i, x in enumerate(guard(data())):
            body(model, optimizer, x)
            if i == 2:
                raise KeyError("mine")
    assert torch.Tensor.backward is before
    assert guard.incidents == []


def test_an_exception_while_the_step_is_run_again_leaves_clean_state():
    """The loop body fails by itself, but only in the replay."""
    model, optimizer = make()
    seen = []
    with pytest.raises(ZeroDivisionError), Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data(bad=[3])):
            seen.append(x)
            if len(seen) == 5:
                raise ZeroDivisionError
            body(model, optimizer, x)
    assert [i.event.step for i in guard.incidents] == [3]
    assert not guard.incidents[0].location.is_reproduced
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())
    assert not torch.is_anomaly_enabled()


def test_the_schedule_of_the_loop_stands_still_with_a_skipped_step():
    def run(batches, is_guarded):
        model, optimizer = make()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
        guard = Guard(model, optimizer, scheduler if is_guarded else None, settings=QUICK)
        for x in guard(batches) if is_guarded else batches:
            body(model, optimizer, x)
            scheduler.step()
        guard.close()
        return scheduler.state_dict()

    kept = [x for i, x in enumerate(data()) if i != 3]
    assert run(data(bad=[3]), True) == run(kept, False)


def test_a_schedule_by_the_epoch_goes_on():
    model, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with Guard(model, optimizer, scheduler, settings=QUICK) as guard:
        for _ in range(2):
            for x in guard(data(bad=[7])):
                body(model, optimizer, x)
            scheduler.step()
    assert len(guard.incidents) == 2
    assert scheduler.get_last_lr() == [0.05 * 0.25]


def test_models_that_share_the_loop_without_the_guard_are_left_alone():
    """The optimizer of another model steps on the same batch: that is not the guard's."""
    model, optimizer = make()
    other = nn.Linear(2, 1)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in guard(data()):
            body(model, optimizer, x)
            body(other, other_optimizer, x)
    assert guard.incidents == []
    assert all(torch.isfinite(p).all() for p in other.parameters())

"""Loops that end early, have a schedule, or share their batches."""

import pytest
import torch
from tests.loops import QUICK, body, data, make
from torch import nn

from stayfinite import Guard


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

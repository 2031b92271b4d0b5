"""After a bad step, schedules, moments and random numbers are as if its batch had never been."""

import itertools

import pytest
import torch
from tests.harmless.schedules import FORMS, OPTIMIZERS, PLACES, SCHEDULERS, differences
from torch.optim import lr_scheduler as schedules

QUICK = ("AdamW",)
OTHERS = [o for o in OPTIMIZERS if o not in QUICK]
TURNS = list(itertools.product(FORMS, PLACES))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_schedule_shows_that_there_was_a_bad_batch(scheduler, tmp_path):
    for optimizer in QUICK:
        assert differences(optimizer, scheduler, tmp_path / optimizer) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SCHEDULERS)), ids=list(SCHEDULERS))
@pytest.mark.parametrize("optimizer", OTHERS)
def test_no_optimizer_shows_that_there_was_a_bad_batch(optimizer, number, tmp_path):
    """In one form and at one place each, in turn: every schedule and every optimizer meets them all.

    `python -m tests.harmless.schedules` does the whole product.
    """
    form, place = TURNS[(number + OTHERS.index(optimizer)) % len(TURNS)]
    assert differences(optimizer, list(SCHEDULERS)[number], tmp_path, [form], [place]) == []


def test_all_schedulers_of_torch_are_here():
    known = {
        name
        for name, cls in vars(schedules).items()
        if isinstance(cls, type)
        and issubclass(cls, schedules.LRScheduler)
        and cls is not schedules.LRScheduler
        and not name.startswith("_")
    }
    assert known <= set(SCHEDULERS)
    assert len(OPTIMIZERS) >= 10
    assert {"SGD", "Adam", "AdamW", "RMSprop"} <= set(OPTIMIZERS)
    assert torch.optim.LBFGS.__name__ not in OPTIMIZERS

"""After a bad step, schedules, moments and random numbers are as if its batch had never been."""

import pytest
import torch
from tests.harmless.schedules import FORMS, OPTIMIZERS, PLACES, SCHEDULERS, differences
from torch.optim import lr_scheduler as schedules

OTHERS = [o for o in OPTIMIZERS if o != "AdamW"]


@pytest.mark.parametrize("number", range(len(SCHEDULERS)), ids=list(SCHEDULERS))
def test_no_schedule_shows_that_there_was_a_bad_batch(number, tmp_path):
    """At every place, the forms in turn; `python -m tests.harmless.schedules` does the whole product."""
    for i, place in enumerate(PLACES):
        form = FORMS[(number + i) % len(FORMS)]
        assert differences("AdamW", list(SCHEDULERS)[number], tmp_path, [form], [place]) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(OTHERS)), ids=OTHERS)
def test_no_optimizer_shows_that_there_was_a_bad_batch(number, tmp_path):
    """At every place, the forms and the schedules in turn."""
    for i, place in enumerate(PLACES):
        form = FORMS[(number + i) % len(FORMS)]
        scheduler = list(SCHEDULERS)[(4 * number + i) % len(SCHEDULERS)]
        assert differences(OTHERS[number], scheduler, tmp_path, [form], [place]) == []


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

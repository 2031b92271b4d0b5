"""Correct models: nothing is said to fail in their forward, and nearly all of it is proved."""

import pytest
import torch
from tests.foresee.safe_models import TRAININGS, Training

from stayfinite.foresee.capture import StepCapture
from stayfinite.foresee.intervals.analysis import judge
from stayfinite.foresee.intervals.box import box_around, reach_of
from stayfinite.locate.modules import name_modules
from stayfinite.locate.notes import SourceRef


def judged(training: Training):
    parameters = dict(training.model.named_parameters())
    taken = StepCapture(
        [
            *(SourceRef("batch", n, t) for n, t in training.batch.items()),
            *(SourceRef("parameter", n, p) for n, p in parameters.items()),
            *(SourceRef("buffer", n, b) for n, b in training.model.named_buffers()),
        ],
        name_modules({"": training.model}),
    )
    with taken:
        training.step()
    reach = reach_of(training.optimizers, {id(p): n for n, p in parameters.items()}, clip_norm=1.0)
    return judge(taken.capture, box_around(taken.capture, reach)).verdicts


@pytest.mark.parametrize("name", TRAININGS)
def test_a_correct_model_is_proved_safe_in_its_forward(name):
    torch.manual_seed(0)
    found = [v for v in judged(TRAININGS[name]()) if v.operation.phase == "forward"]
    assert not [v for v in found if v.status == "can_fail"]
    assert sum(v.status == "safe" for v in found) >= 0.8 * len(found) > 0


@pytest.mark.parametrize("name", TRAININGS)
def test_nothing_in_its_backward_or_its_optimizer_is_said_to_fail(name):
    torch.manual_seed(0)
    assert not [v for v in judged(TRAININGS[name]()) if v.status == "can_fail"]


def test_one_unsafe_line_in_a_correct_model_is_found():
    torch.manual_seed(0)
    training = TRAININGS["vae"]()
    inner = training.losses[0]
    training.losses[0] = lambda m, b: inner(m, b) + (b["x"] - 0.5).relu().sum(1).log().mean()
    found = [
        v for v in judged(training) if v.status == "can_fail" and v.operation.phase == "forward"
    ]
    assert [(v.operation.op, v.operation.file) for v in found] == [("aten.log", __file__)]

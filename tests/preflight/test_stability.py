"""The stability group: planted rates, and how courses are judged."""

import pytest
import torch
from tests.preflight.planted_probes import assert_found, of_group

from stayfinite.preflight.probes import Seen, Subject
from stayfinite.preflight.stability import Course, judge_stability, stability


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("stability"), ids=lambda d: d.name)
def test_planted_rate_is_named(defect):
    assert_found(defect)


FALLING, FLAT, RISING = (2.0, 1.5, 1.0), (1.0, 1.1, 1.0), (1.0, 4.0, 5.0)
GONE = (1.0, 50.0, 500.0)


@pytest.mark.parametrize(
    ("courses", "status"),
    [
        ([Course(1.0, FALLING), Course(3.0, FALLING), Course(10.0, FALLING)], "pass"),
        ([Course(1.0, FLAT), Course(3.0, FLAT), Course(10.0, GONE)], "pass"),
        ([Course(1.0, FALLING), Course(3.0, GONE)], "warn"),
        ([Course(1.0, FALLING), Course(3.0, (1.0,), is_finite=False)], "warn"),
        ([Course(1.0, RISING), Course(3.0, RISING), Course(10.0, RISING)], "warn"),
        ([Course(1.0, GONE)], "fail"),
        ([Course(1.0, (2.0,), is_finite=False)], "fail"),
        ([Course(1.0, (1e-4, 2e-2, 5e-2)), Course(3.0, FLAT), Course(10.0, FLAT)], "pass"),
        ([Course(1.0, (-1.0, -2.0, -3.0)), Course(3.0, FLAT), Course(10.0, FLAT)], "pass"),
    ],
)
def test_only_the_own_rate_can_fail(courses, status):
    (found,) = judge_stability(courses, 3)
    assert found.status == status


def test_steps_go_on_from_each_other_and_stop_at_the_first_rate_that_breaks():
    subject = Subject(
        models={},
        optimizers=[object()],
        batches=[torch.zeros(1), torch.ones(1)],
        num_steps=3,
    )
    asked = []
    checks = stability(subject)
    probe = next(checks)
    try:
        while True:
            asked.append((probe.lr_factor, probe.keep, probe.apply))
            is_bad = probe.lr_factor == 3
            probe = checks.send(
                Seen("x", loss=1.0, is_finite=not is_bad, lrs=(0.1 * probe.lr_factor,))
            )
    except StopIteration as stop:
        (found,) = stop.value
    assert asked == [(1, True, True), (1, True, True), (1, False, True), (3, True, True)]
    assert found.subject == "lr 0.1"
    assert found.value == "3 steps, loss: x1 1 → 1; x3 is not finite at step 1"
    assert found.action.startswith("lower lr to 0.03")


def test_step_that_the_grad_scaler_leaves_out_is_no_divergence():
    subject = Subject(
        models={}, optimizers=[object()], scalers=[torch.amp.GradScaler("cpu")],
        batches=[torch.zeros(1)], num_steps=2,
    )  # fmt: skip
    checks = stability(subject)
    next(checks)
    try:
        while True:
            checks.send(Seen("x", loss=1.0, is_finite=False, lrs=(0.1,)))
    except StopIteration as stop:
        assert [f.status for f in stop.value] == ["pass"]

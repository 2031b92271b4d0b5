"""The stability group: planted rates, and how courses are judged."""

import pytest
import torch
from tests.preflight.planted_probes import assert_found, of_group

from stayfinite.preflight.probes import Seen, Subject
from stayfinite.preflight.stability.group import Course, judge_stability, stability


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("stability"))
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


@pytest.mark.parametrize("smallest_bad", [3, 10, 30])
def test_smaller_rates_are_tried_where_the_largest_one_breaks(smallest_bad):
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
            is_bad = probe.lr_factor >= smallest_bad
            lrs = (0.1 * probe.lr_factor,)
            probe = checks.send(Seen("x", loss=1.0, is_finite=not is_bad, lrs=lrs))
    except StopIteration as stop:
        (found,) = stop.value
    whole = [(True, True), (True, True), (False, True)]
    steps = {f: [tuple(how) for factor, *how in asked if factor == f] for f in (1, 3, 10)}
    assert found.subject == "lr 0.1"
    if smallest_bad == 3:
        assert steps == {1: whole, 3: whole[:1], 10: whole[:1]}
        assert found.value == "3 steps, loss: x1 1 → 1; x3 is not finite at step 1"
        assert found.action.startswith("lower lr to 0.03")
    elif smallest_bad == 10:
        assert steps == {1: whole, 3: whole, 10: whole[:1]}
        assert found.value.endswith("the edge is between x3 and x10")
    else:
        assert steps == {1: [], 3: [], 10: whole}
        assert found.value.endswith("steady up to x10")


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


def findings_of(breaks, num_steps=4):
    """What the group says of a training whose steps break as `breaks(batch, moved)` says.

    `moved` is how far the steps before this one have moved the weights.
    """
    subject = Subject(
        models={}, optimizers=[object()], batches=list(torch.arange(3)), num_steps=num_steps
    )
    checks = stability(subject)
    moved = 0.0
    try:
        probe = next(checks)
        while True:
            moved = 0.0 if probe.fresh else moved
            error = breaks(int(probe.batch), moved)
            lr = 0.1 * probe.lr_factor
            moved += lr if probe.apply else 0.0
            where = "train.py:3 step(batch)" if error else ""
            seen = Seen("x", 1.0, None, error is None, error, where, lrs=(lr,))
            moved = moved if probe.keep else 0.0
            probe = checks.send(seen)
    except StopIteration as stop:
        return stop.value


def test_batch_that_raises_by_itself_is_named_and_the_rate_judged_without_it():
    batch, rate = findings_of(lambda batch, moved: "ValueError: bad" if batch == 1 else None)
    assert (batch.status, batch.check, batch.subject) == (
        "fail",
        "stability/batch",
        "batch 1 (from 0)",
    )
    assert batch.value == (
        "breaks before any step: ValueError: bad at train.py:3: step(batch); the learning rate is "
        "not to blame"
    )
    assert (rate.status, rate.check) == ("pass", "stability/lr")


def test_step_that_raises_because_the_weights_have_moved_is_blamed_on_the_rate():
    (rate,) = findings_of(lambda batch, moved: "ValueError: loss is nan" if moved > 0.15 else None)
    assert (rate.status, rate.check, rate.subject) == ("fail", "stability/lr", "lr 0.1")
    assert rate.value == "4 steps, loss: x1 raises ValueError: loss is nan"


def test_step_that_breaks_at_any_rate_is_no_matter_of_the_rate():
    (step,) = findings_of(lambda batch, moved: "ValueError: stale" if moved > 0 else None)
    assert (step.status, step.check, step.subject) == (
        "fail",
        "stability/step",
        "step 1 (from 0, batch 1)",
    )
    assert step.value.startswith("breaks at a learning rate of 1e-09, too: ValueError: stale")


def test_training_that_breaks_on_every_batch_has_one_finding():
    (batch,) = findings_of(lambda batch, moved: "ValueError: bad")
    assert (batch.status, batch.subject) == ("fail", "every batch")

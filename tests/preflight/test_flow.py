"""The forward group: planted defects by name, the pure judges, and look-alikes."""

import pytest
import torch
from tests.preflight.healthy import classify, clusters, loader
from tests.preflight.planted_probes import assert_found, of_group
from torch.nn import functional as F

from stayfinite.preflight.flow.group import at_location, forward
from stayfinite.preflight.flow.losses import LossWatch
from stayfinite.preflight.flow.scale import (
    judge_activations,
    judge_dead,
    judge_saturated,
    leaves_of,
)
from stayfinite.preflight.flow.start import judge_loss
from stayfinite.preflight.layers import ask
from stayfinite.preflight.probes import LayerSeen, LossCall, Probe, Seen, Subject
from stayfinite.preflight.runner.check import check
from stayfinite.records import Link, Location


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("forward"))
def test_planted_defect_is_named(defect):
    assert_found(defect)


def layer(name, std, kind="Linear", **more):
    return LayerSeen(name, kind, std=std, num_calls=1, **more)


def test_containers_are_left_out():
    seen = [
        layer("body.0", 1),
        layer("body.1", 1),
        layer("body", 1),
        layer("head", 1),
        layer("", 1),
    ]
    assert [x.module for x in leaves_of(seen)] == ["body.0", "body.1", "head"]
    assert [x.module for x in leaves_of([layer("", 1)])] == [""]


def test_steepest_layer_is_blamed():
    (found,) = judge_activations([layer("a", 1), layer("b", 1e5), layer("c", 1e5), layer("d", 1e5)])
    assert (found.status, found.subject) == ("warn", "b")
    (found,) = judge_activations([layer("a", 1), layer("b", 1), layer("c", 1e-8)])
    assert (found.status, found.subject) == ("warn", "c")
    assert "fades" in found.value


def test_mask_in_the_middle_is_no_explosion():
    seen = [layer("a", 1), layer("mask", 1e9), *[layer(f"b{i}", 1) for i in range(6)]]
    assert [f.status for f in judge_activations(seen)] == ["pass"]


def test_unit_that_is_dead_in_one_batch_only_is_alive():
    def relu(dead):
        return [layer("act", 1, "ReLU", dead_units=dead, num_units=10)]

    assert [f.status for f in judge_dead([relu(9), relu(2)])] == ["pass"]
    assert [f.status for f in judge_dead([relu(9), relu(8)])] == ["warn"]
    assert [f.status for f in judge_dead([relu(10), relu(10)])] == ["fail"]
    assert judge_dead([[layer("fc", 1)]]) == []


@pytest.mark.parametrize(
    ("kind", "mean", "std", "status"),
    [
        ("Tanh", 0.0, 0.99, "warn"),
        ("Tanh", 0.1, 0.6, "pass"),
        ("Sigmoid", 0.5, 0.49, "warn"),
        ("Sigmoid", 0.99, 0.01, "warn"),
        ("Sigmoid", 0.5, 0.1, "pass"),
    ],
)
def test_saturation(kind, mean, std, status):
    assert [f.status for f in judge_saturated([layer("x", std, kind, mean=mean)])] == [status]


@pytest.mark.parametrize(
    ("call", "check", "status"),
    [
        (LossCall("cross_entropy", 2.4, 10), "loss/at-start", "pass"),
        (LossCall("cross_entropy", 9.0, 10), "loss/at-start", "warn"),
        (LossCall("cross_entropy", 9.0, 10, has_weights=True), "loss/at-start", "pass"),
        (LossCall("cross_entropy", 0.01, 10), "loss/at-start", "pass"),
        (LossCall("binary_cross_entropy_with_logits", 0.7), "loss/at-start", "pass"),
        (LossCall("binary_cross_entropy_with_logits", 8.0), "loss/at-start", "warn"),
        (
            LossCall(
                "nll_loss", 2.3, 10, input_min=-9.0, input_max=0.0, input_op="LogSoftmaxBackward0"
            ),
            "loss/at-start",
            "pass",
        ),
        (
            LossCall("kl_div", 0.1, input_min=0.0, input_max=0.9),
            "loss/not-log-probabilities",
            "fail",
        ),
        (
            LossCall("mse_loss", 0.1, input_shape=(8, 1), target_shape=(8,)),
            "loss/broadcast",
            "fail",
        ),
        (LossCall("mse_loss", 0.1, input_shape=(8, 3), target_shape=(3,)), "loss/at-start", "pass"),
        (
            LossCall("mse_loss", 0.1, input_shape=(8, 3), target_shape=(8, 3)),
            "loss/at-start",
            "pass",
        ),
    ],
)
def test_loss_calls(call, check, status):
    assert [(f.check, f.status) for f in judge_loss(Seen("x", loss=1.0, loss_calls=[call]))] == [
        (check, status)
    ]


def test_same_line_is_judged_once():
    calls = [LossCall("cross_entropy", v, 10, at="train.py:3") for v in (2.3, 9.0)]
    (found,) = judge_loss(Seen("x", loss=1.0, loss_calls=calls))
    assert found.status == "pass"


def test_watch_sees_losses_however_they_are_called():
    logits = torch.randn(6, 5, requires_grad=True)
    target = torch.arange(6) % 5
    with LossWatch() as watch:
        torch.nn.CrossEntropyLoss()(logits, target)
        F.cross_entropy(input=logits.softmax(-1), target=target, reduction="sum")
        F.cross_entropy(logits[:0], target[:0])
        F.ctc_loss(
            logits.log_softmax(-1).unsqueeze(1),
            torch.tensor([[1]]),
            torch.tensor([6]),
            torch.tensor([1]),
        )
        torch.exp(logits)
    first, second, empty, ctc = watch.calls
    assert first.num_classes == 5 and not first.is_distribution
    assert first.at.startswith("test_flow.py:")
    assert second.is_distribution and second.input_op == "SoftmaxBackward0"
    assert second.value == pytest.approx(1.6, abs=0.3)
    assert empty.value is None
    assert ctc.num_classes == 5 and not ctc.has_weights


def test_location_is_reported_in_words():
    assert at_location(None) == ("", "")
    place = Location(op="aten.log", module="head", file="/a/b/net.py", line=7, source="x.log()")
    assert at_location(place) == ("head", ", born in aten.log at net.py:7: x.log()")
    batch = Location(chain=(Link(op=None, role="source", label="batch['x']"),))
    assert at_location(batch) == ("batch['x']", ", which came in with batch['x']")


def test_without_a_batch_nothing_is_asked():
    with pytest.raises(StopIteration) as stop:
        next(forward(Subject(models={})))
    assert [f.status for f in stop.value.value] == ["skip"]


def run(checks, answers):
    """The findings of a group that is given these answers, whatever it asks."""
    try:
        next(checks)
        for seen in answers:
            checks.send(seen)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the group asked for more")


def test_step_that_raises_is_a_failure_with_its_line():
    subject = Subject(models={}, batches=[torch.zeros(2)])
    seen = Seen("x", error="ValueError: no", error_at="/a/train.py:3 loss = f(x)")
    (found,) = run(forward(subject), [seen])
    assert (found.check, found.status, found.subject) == ("forward/runs", "fail", "train.py:3")


def asked(checks, answers):
    """The loss scales that were asked for, and what came out."""
    scales = [next(checks).scale]
    try:
        for seen in answers:
            scales.append(checks.send(seen).scale)
    except StopIteration as stop:
        return scales, stop.value
    raise AssertionError("one more answer is wanted")


def test_overflow_under_a_grad_scaler_is_tried_at_lower_scales():
    bad, good = Seen("x", loss=1.0, is_finite=False), Seen("x", loss=1.0)
    scaled = Subject(models={}, scalers=[torch.amp.GradScaler("cpu")])
    probe = Probe(batch=None, name="x")
    assert asked(ask(scaled, probe), [good]) == ([None], good)
    assert asked(ask(scaled, probe), [bad, good]) == ([None, 256.0], good)
    assert asked(ask(scaled, probe), [bad, bad, bad]) == ([None, 256.0, 1.0], bad)
    assert asked(ask(Subject(models={}), probe), [bad]) == ([None], bad)


@pytest.mark.slow
def test_compiled_model_is_watched_eagerly():
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    parts = torch.compile(model, backend="eager"), classify, loader(*clusters())
    report = check((*parts, torch.optim.Adam(model.parameters())), only=["forward"])
    assert report.verdict == "ready"
    assert any(f.check == "forward/dead" for f in report.findings)

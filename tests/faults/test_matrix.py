"""Every fault states the event and the location it expects; its healthy twin must stay silent."""

from dataclasses import dataclass

import torch
from tests.faults import training
from tests.faults.forms import FORMS
from tests.faults.training import BAD, NUM_BATCHES, PLACES, PRECISIONS, VALUES, Fault
from tests.sweep import sweep

OPERATOR = {"nan": "sqrt", "+inf": "reciprocal", "-inf": "log"}


@dataclass(frozen=True)
class Expected:
    phase: str
    symptom: str
    op: str | None
    module: str | None
    source: str
    """The line of the user's code."""
    name: str | None = None
    """What went bad, where the event names it."""
    label: str | None = None
    """Where the bad value came in with, when no operator made it."""


def expected(place: str, value: str) -> Expected:
    op = f"aten.{OPERATOR[value]}"
    line = f"return torch.{OPERATOR[value]}(number)"
    return {
        "input": Expected("data", "loss", None, None, "x = self.first(x)", label="batch batch[0]"),
        "label": Expected(
            "data", "loss", None, None, "loss = (guess - y).pow(2).mean()", label="batch batch[1]"
        ),
        "activation": Expected("forward", "loss", op, "tap", line),
        "loss": Expected("loss", "loss", op, None, line),
        # A backward that the user wrote: its own line, not the one where it was applied.
        "gradient": Expected("backward", "gradient", "SpoilGradientBackward", "tap", line),
        "parameter": Expected("optimizer", "parameter", op, None, line, name="last.weight"),
        "buffer": Expected("forward", "buffer", op, "tap", line, name="tap.level"),
        "optimizer_state": Expected(
            "optimizer", "optimizer_state", op, None, line, name="last.weight:momentum_buffer"
        ),
    }[place]  # fmt: skip


def line_of(source: str) -> int:
    with open(training.__file__, encoding="utf-8") as file:
        (number,) = [i for i, text in enumerate(file, 1) if text.strip() == source]
    return number


def state_tensors(trained):
    yield from trained.model.named_parameters()
    yield from trained.model.named_buffers()
    for p, entries in trained.optimizer.state.items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                yield f"{tuple(p.shape)}:{key}", value


def assert_clean(trained):
    bad = [name for name, t in state_tensors(trained) if not torch.isfinite(t).all()]
    assert not bad, f"not finite after the run: {bad}"


def assert_as_expected(incident, fault):
    event, location, want = incident.event, incident.location, expected(fault.place, fault.value)
    assert (event.step, event.phase, event.symptom) == (fault.at, want.phase, want.symptom)
    assert event.kind == "nonfinite"
    assert location.is_reproduced
    assert (location.op, location.module) == (want.op, want.module)
    assert (location.source, location.line) == (want.source, line_of(want.source))
    assert location.file == training.__file__
    if want.name is not None:
        assert event.name == want.name
    if want.label is not None:
        assert location.chain[0].label == want.label
        assert location.chain[0].role == "source"
    if want.op is not None and want.op.startswith("aten."):
        (birth,) = [link for link in location.chain if link.role == "birth"]
        (result,) = birth.outputs
        counts = (result.stats.num_nan, result.stats.num_posinf, result.stats.num_neginf)
        assert counts == {"nan": (1, 0, 0), "+inf": (0, 1, 0), "-inf": (0, 0, 1)}[fault.value]


MATRIX = sweep(form=FORMS, place=PLACES, value=VALUES, precision=PRECISIONS)


@MATRIX
def test_fault_is_noticed_located_and_kept_out(
    form, place, value, precision, tmp_path, as_script, capfd
):
    fault = Fault(place, value, precision)
    trained = FORMS[form](fault, tmp_path)
    assert len(trained.incidents) == 1, [i.event for i in trained.incidents]
    assert_as_expected(trained.incidents[0], fault)
    assert trained.incidents[0].action.kind == "skipped"
    assert_clean(trained)
    assert f"step {BAD}:" in capfd.readouterr().err.replace("(epoch 0)", "").replace(" :", ":")


@MATRIX
def test_healthy_twin_is_silent(form, place, value, precision, tmp_path, as_script, capfd):
    trained = FORMS[form](Fault(place, value, precision, is_healthy=True), tmp_path)
    assert trained.incidents == []
    assert_clean(trained)
    assert capfd.readouterr() == ("", "")


@sweep(form=FORMS, place=PLACES, at=[0, NUM_BATCHES - 1])
def test_first_and_last_step_are_no_blind_spots(form, place, at, tmp_path, as_script):
    """The first has no step before it to go back to, the last none after it to show the damage."""
    fault = Fault(place, "nan", at=at)
    trained = FORMS[form](fault, tmp_path)
    assert len(trained.incidents) == 1
    assert_as_expected(trained.incidents[0], fault)
    assert_clean(trained)

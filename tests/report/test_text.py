"""The text of an incident: the message is the product."""

import math
import os

import pytest

from stayfinite.records import (
    Action,
    Diagnosis,
    Event,
    Experiment,
    Fix,
    Incident,
    Link,
    Location,
    Operand,
    TensorStats,
)
from stayfinite.report.text import headline, number, render, short_path

HERE = os.path.abspath("train.py")
BIRTH = Link(
    op="aten.log", role="birth", module="encoder.norm", file=HERE, line=41, source="x = x.log()",
    inputs=(
        Operand(name="self", label="batch batch[0]", stats=TensorStats(
            shape=(8, 16), dtype="float16", num_elements=128, num_zero=3, min=0.0, max=2.5,
            headroom_bits=14.68,
        )),
        Operand(name="dim", value="-1"),
    ),
    outputs=(Operand(name="result", stats=TensorStats(
        shape=(8, 16), dtype="float16", num_elements=128, num_neginf=3, min=-7.0, max=0.916,
    )),),
)  # fmt: skip
SYMPTOM = Link(op="aten.mean", role="symptom", file=HERE, line=50)
LOCATION = Location(
    op="aten.log", module="encoder.norm", file=HERE, line=41, source="x = x.log()",
    function="forward", library_file="/lib/functional.py", library_line=7, library_source="y",
    chain=(BIRTH, SYMPTOM),
)  # fmt: skip
EVENT = Event(
    step=7, phase="forward", epoch=1, value=-math.inf, loss=-math.inf, grad_norm=3.0,
    lr=(0.001,), scale=65536.0,
)  # fmt: skip
SKIPPED = Action(kind="skipped", detail="nothing moved")
INCIDENT = Incident(id="i", event=EVENT, location=LOCATION, action=SKIPPED, path="/runs/i")

WHOLE = """\
stayfinite: step 7 (epoch 1): the loss is -inf
  phase: forward

where
  operator  aten.log
  module    encoder.norm
  line      train.py:41  in forward
            x = x.log()
  under it  /lib/functional.py:7
            y

chain, from birth to symptom
  aten.log                   born here           train.py:41 [encoder.norm]
  aten.mean                  seen here           train.py:50

values at the birth
  tensor             shape  dtype    nan  +inf  -inf  zeros  min  max    headroom
  in batch batch[0]  8x16   float16  .    .     .     3      0    2.5    14.7 bits
  out result         8x16   float16  .    .     3     .      -7   0.916  -
  arguments: dim=-1

this step
  loss -inf   grad norm 3   lr 0.001   scale 6.554e+04

done: skipped; nothing moved
saved: /runs/i"""


def test_the_whole_text():
    assert render(INCIDENT) == WHOLE


def test_a_diagnosis_stands_between_the_figures_and_what_was_done():
    diagnosis = Diagnosis(
        cause="log_of_zero", confidence=0.9, summary="a probability is zero",
        evidence=("3 zeros went in",), samples=(4, 5), dataset_indices=(104, 105),
        experiments=(
            Experiment(name="fp32", changed="float32 instead of float16", outcome="nonfinite"),
            Experiment(name="drop", changed="without rows 4, 5", outcome="finite", detail="2 ms"),
        ),
        fixes=(Fix(title="use log_softmax", why="it cannot saturate", status="verified",
                   before="x.log()", after="x.log_softmax(-1)"),),
    )  # fmt: skip
    text = render(Incident(id="i", event=EVENT, diagnosis=diagnosis, action=SKIPPED))
    assert text.endswith(
        """\
why: log_of_zero (confidence 90%)
  a probability is zero
  - 3 zeros went in
  rows of the batch that are enough to fail: 4, 5
  their indices in the data set: 104, 105

proof: the same step again, with one change
  float32 instead of float16  -> still not finite
  without rows 4, 5           -> the step is finite: 2 ms

try
  1. use log_softmax  [verified]
       - x.log()
       + x.log_softmax(-1)
     it cannot saturate

done: skipped; nothing moved"""
    )


@pytest.mark.parametrize(
    ("incident", "line"),
    [
        (
            INCIDENT,
            "step 7: the loss is -inf, born in aten.log at train.py:41; skipped",
        ),
        (
            Incident(
                id="i", event=Event(step=1, phase="backward", symptom="gradient", name="fc.w")
            ),
            "step 1: the gradient of fc.w is not finite",
        ),
        (
            Incident(id="i", event=Event(step=1, phase="optimizer", symptom="parameter", name="w")),
            "step 1: the parameter w is not finite",
        ),
        (
            Incident(id="i", event=Event(step=1, phase="forward", symptom="buffer", name="bn.var")),
            "step 1: the buffer bn.var is not finite",
        ),
        (
            Incident(
                id="i",
                event=Event(step=1, phase="optimizer", symptom="optimizer_state", name="w:exp_avg"),
            ),
            "step 1: the optimizer's w:exp_avg is not finite",
        ),
        (
            Incident(id="i", event=Event(step=1, phase="loss", loss=math.inf)),
            "step 1: the loss is inf",
        ),
        (
            Incident(
                id="i",
                event=Event(step=1, phase="data", value=math.nan),
                location=Location(
                    file=HERE, line=3, chain=(Link(op=None, role="source", label="batch x"),)
                ),
                diagnosis=Diagnosis(cause="bad_input_data", confidence=1.0),
                action=Action(kind="raised"),
            ),
            "step 1: the loss is nan, from batch x at train.py:3 (bad_input_data); raised",
        ),
        (
            Incident(id="i", event=Event(step=1, phase="loss", message="the scale collapsed")),
            "step 1: the scale collapsed",
        ),
    ],
)
def test_headlines(incident, line):
    assert headline(incident) == line


def test_a_step_that_was_traced_back_is_told():
    event = Event(step=3, phase="optimizer", symptom="parameter", name="w", noticed_at_step=6)
    first, second, *_ = render(Incident(id="i", event=event)).splitlines()
    assert first == "stayfinite: step 3 (epoch 0): the parameter w is not finite"
    assert second == "  noticed at step 6, traced back to step 3"


def test_noticed_at_once_is_not_worth_a_line():
    event = Event(step=3, phase="loss", noticed_at_step=3)
    assert "noticed" not in render(Incident(id="i", event=event))


def test_a_note_is_told_even_without_a_place():
    location = Location(is_reproduced=False, note="was finite when run again")
    text = render(Incident(id="i", event=EVENT, location=location))
    assert "  note      was finite when run again" in text.splitlines()


def test_the_model_itself_has_a_name():
    text = render(Incident(id="i", event=EVENT, location=Location(op="aten.log", module="")))
    assert "  module    (the model itself)" in text.splitlines()


def test_no_line_ends_in_blanks():
    assert all(line == line.rstrip() for line in render(INCIDENT).splitlines())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (-0.0, "-0"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1e-12, "1e-12"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_paths_are_short_where_that_helps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert short_path("/usr/lib/x.py") == "/usr/lib/x.py"
    assert short_path("<stdin>") == "<stdin>"

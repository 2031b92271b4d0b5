"""The text of an incident: the message is the product."""

import math
import os
from dataclasses import replace

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
    Proof,
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
  where  train.py:41 in forward, module encoder.norm, born in aten.log
           x = x.log()

done: skipped; nothing moved
saved: /runs/i

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
  loss -inf   grad norm 3   lr 0.001   scale 6.554e+04"""


def test_the_whole_text():
    assert render(INCIDENT) == WHOLE


DIFF = """\
--- a/train.py
+++ b/train.py
@@ -41 +41 @@
-x.log()
+x.log_softmax(-1)
"""
PROOF = Proof(is_step_finite=True, num_healthy=3, largest_change=1e-7, num_after=6)


def test_a_search_without_a_result_does_not_call_the_step_non_finite():
    tried = Experiment(
        name="smaller_lr", changed="smaller learning rates", outcome="nonfinite",
        detail="the lowest tried was 3e-07",
    )  # fmt: skip
    text = render(Incident(id="i", event=EVENT, diagnosis=Diagnosis(experiments=(tried,))))
    assert "smaller learning rates  -> no value passed: the lowest tried was 3e-07" in text


def test_where_why_the_diff_and_its_proof_come_first():
    diagnosis = Diagnosis(
        cause="log_of_zero", confidence=0.9, summary="a probability is zero",
        evidence=("3 zeros went in",), samples=(4, 5), dataset_indices=tuple(range(104, 120)),
        experiments=(
            Experiment(name="fp32", changed="float32 instead of float16", outcome="nonfinite"),
            Experiment(name="drop", changed="without rows 4, 5", outcome="finite", detail="2 ms"),
        ),
        fixes=(
            Fix(title="use log_softmax", why="it cannot saturate", status="proved", diff=DIFF,
                proof=PROOF),
            Fix(title="or clean the data", why="it helps"),
            Fix(title="add an epsilon", why="none", status="refuted", diff=DIFF,
                proof=Proof(note="the step is still not finite")),
        ),
    )  # fmt: skip
    text = render(Incident(id="i", event=EVENT, diagnosis=diagnosis, action=SKIPPED, path="/r/i"))
    assert text.startswith(
        """\
stayfinite: step 7 (epoch 1): the loss is -inf
  phase: forward
  why    log_of_zero (confidence 90%): a probability is zero
  fix    use log_softmax  [proved]
    --- a/train.py
    +++ b/train.py
    @@ -41 +41 @@
    -x.log()
    +x.log_softmax(-1)
  proof  exactly this diff was run: step 7 is finite; 3 healthy steps before it give the same loss
         (largest change 1e-07); 6 steps after it stay finite
  apply  stayfinite fix /r/i --apply

done: skipped; nothing moved
"""
    )
    assert text.endswith(
        """\
also known
  - 3 zeros went in
  rows of the batch that are enough to fail: 4, 5
  their indices in the data set: 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, ... (16 in all)

experiments: the same step again with one thing changed; they prove the cause, not a fix
  float32 instead of float16  -> still not finite
  without rows 4, 5           -> the step is finite: 2 ms

or
  1. clean the data  [untried]
     it helps

tried, and does not help  [refuted]
  - add an epsilon: the step is still not finite"""
    )


def test_a_refuted_change_is_never_under_try():
    fixes = (Fix(title="lower it", why="w", status="refuted"),)
    text = render(Incident(id="i", event=EVENT, diagnosis=Diagnosis(cause="c", fixes=fixes)))
    assert "\ntry" not in text and "does not help" in text


def test_a_long_chain_is_cut_with_an_ellipsis():
    links = (BIRTH, *(Link(op=f"aten.op{i}", role="carrier") for i in range(30)), SYMPTOM)
    text = render(replace(INCIDENT, location=replace(LOCATION, chain=links)))
    assert "  ... 19 more carry it on ...\n  aten.mean" in text
    cut = replace(SYMPTOM, num_left_out=7)  # as it is where the chain is made
    text = render(replace(INCIDENT, location=replace(LOCATION, chain=(BIRTH, cut))))
    assert "  ... 7 more carry it on ...\n  aten.mean" in text


def test_an_operator_that_only_carried_it_has_not_born_it():
    source = Link(op=None, role="source", label="batch x")
    carried = replace(BIRTH, role="carrier")
    text = headline(replace(INCIDENT, location=replace(LOCATION, chain=(source, carried))))
    assert "seen in aten.log" in text and "born" not in text


def test_the_first_bad_index_is_shown_with_its_meaning():
    location = replace(LOCATION, first_bad="sample 3, feature 8")
    assert "born in aten.log, first at sample 3, feature 8" in render(
        replace(INCIDENT, location=location)
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


def test_a_step_that_was_traced_back_is_reported():
    event = Event(step=3, phase="optimizer", symptom="parameter", name="w", noticed_at_step=6)
    first, second, *_ = render(Incident(id="i", event=event)).splitlines()
    assert first == "stayfinite: step 3 (epoch 0): the parameter w is not finite"
    assert second == "  noticed at step 6, traced back to step 3"


def test_noticed_at_once_is_not_worth_a_line():
    event = Event(step=3, phase="loss", noticed_at_step=3)
    assert "noticed" not in render(Incident(id="i", event=event))


def test_a_note_is_reported_even_without_a_place():
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

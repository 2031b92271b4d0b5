"""What the user reads, word for word."""

import pytest

from stayfinite.errors import UsageError
from stayfinite.ladder import Change, LadderReport, Outcome, Plan
from stayfinite.ladder.render import render

AMP = Change(
    label="use_amp=false",
    kind="config",
    key="use_amp",
    before="true",
    after="false",
    file="config.yaml",
)
LR = Change(
    label="lr=0.1x", kind="flag", key="lr", before="0.1", after="0.01",
    flag={"strings": ["-l", "--lr"], "dest": "lr", "kind": "value"},
)  # fmt: skip
CLIP = Change(label="clip=1", kind="knob", key="clip", after="1")
BASE = Outcome(
    status="failed", step=17, loss=0.9, op="aten.log", file="train.py", line=93,
    cause="log_of_zero", text="step 17: the loss is inf, born in aten.log at train.py:93 (log_of_zero)",
)  # fmt: skip


def failed(*changes, **other):
    about = {"op": "aten.log", "file": "train.py", "line": 93, "cause": "log_of_zero"} | other
    return Outcome(changes=changes, status="failed", step=17, **about)


def report(**other):
    return LadderReport(target="train.py", failing_step=17, goal=22, baseline=BASE, **other)


def test_a_survivor_is_named_with_how_to_keep_it():
    alive = Outcome(changes=(AMP,), status="survived", step=22, loss=0.93)
    also = Outcome(changes=(CLIP,), status="survived", step=22)
    found = report(rungs=(failed(LR), alive, also), smallest=(AMP,))
    assert found.exit_code == 0
    assert render(found).splitlines() == [
        "stayfinite ladder: train.py",
        "  unchanged: step 17: the loss is inf, born in aten.log at train.py:93 (log_of_zero); "
        "the loss before it was 0.9",
        "  a change survives if step 22 is finished and everything is finite",
        "",
        "  change         where                       outcome",
        "  lr=0.1x        flag: 0.1 -> 0.01           failed at step 17: the same operator, line and cause",
        "  use_amp=false  config.yaml: true -> false  survived to step 22, loss 0.93",
        "  clip=1         stayfinite's own            survived to step 22",
        "",
        "survives: use_amp=false (also: clip=1)",
        "  to keep it: use_amp: false in config.yaml (was true)",
    ]


def test_sets_are_reported_when_no_single_change_does_it():
    pair = Outcome(changes=(LR, CLIP), status="survived", step=22)
    found = report(
        rungs=(failed(LR), failed(CLIP, op="aten.exp")), sets=(pair,), smallest=(LR, CLIP)
    )
    assert render(found).splitlines()[-6:] == [
        "  together",
        "  lr=0.1x + clip=1: survived to step 22",
        "",
        "no single change survives; the smallest set that does: lr=0.1x + clip=1",
        "  to keep it: --lr 0.01 (was 0.1)",
        "  to keep it: call `torch.nn.utils.clip_grad_norm_(model.parameters(), 1)` before "
        "`optimizer.step()`",
    ]
    assert "failed at step 17: aten.exp, train.py:93 (log_of_zero)" in render(found)


def test_no_survivor_is_exit_code_one():
    idle = Outcome(changes=(AMP,), status="idle", text="it is false already")
    late = Outcome(changes=(CLIP,), status="timeout", step=4, text="no answer after 9 s")
    found = report(rungs=(failed(LR), idle, late))
    assert found.exit_code == 1
    text = render(found)
    assert "no effect: it is false already" in text
    assert "timed out at step 4: no answer after 9 s" in text
    assert "no change survives step 17\n" in text


def test_nothing_failed_is_exit_code_zero():
    base = Outcome(status="survived", step=30, text="the script came to its end", loss=1.0)
    found = LadderReport(target="train.py", baseline=base)
    assert found.exit_code == 0
    assert "the unchanged run does not fail (to step 30): nothing to get past" in render(found)
    late = LadderReport(
        target="t.py", baseline=Outcome(status="timeout", text="no answer after 3 s")
    )
    assert "did not fail before the time limit" in render(late)


def test_the_report_survives_json():
    found = report(rungs=(failed(LR),), notes=("x",), duration_s=1.5)
    assert LadderReport.from_json(found.to_json()) == found
    for text in ("{", "[]", '{"kind": "other"}'):
        with pytest.raises(UsageError, match="not a ladder report"):
            LadderReport.from_json(text)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"until_step": -1}, "`until_step` must be at least 0, got -1"),
        ({"margin": -2}, "`margin` must be at least 0, got -2"),
        ({"timeout_s": 0}, "`timeout` must be above 0, got 0"),
    ],
)
def test_a_wrong_plan_is_refused(wrong, said):
    with pytest.raises(UsageError) as caught:
        Plan(target="train.py", **wrong)
    assert str(caught.value) == said

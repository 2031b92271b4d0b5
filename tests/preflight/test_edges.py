"""The edges group: planted defects, how hard a break is judged, and what a finding says."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.preflight.healthy import loader
from tests.preflight.planted_probes import assert_found, of_group
from torch import nn

from stayfinite.foresee.search.candidates import Candidate
from stayfinite.preflight import CheckReport, check
from stayfinite.preflight.edges.ahead import Ahead
from stayfinite.preflight.edges.draws import Draw, unwritten_memory
from stayfinite.preflight.edges.group import Search, edges
from stayfinite.preflight.edges.unlucky import UnluckyRandom
from stayfinite.preflight.probes import Seen, Subject
from stayfinite.records import Location
from stayfinite.report.reading import read_incident


@pytest.mark.slow
@pytest.mark.parametrize("defect", of_group("edges"))
def test_planted_defect_is_named(defect):
    assert_found(defect)


X = torch.randn(6, 8, 3)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def answer(subject, breaks, heals="never", seconds=0.0, asked=None):
    """The findings when the probes whose name has one of these words break, at these places."""
    checks = edges(subject)
    probe = next(checks)
    try:
        while True:
            if asked is not None:
                asked.append(probe.name)
            word = next((w for w in breaks if w in probe.name and heals not in probe.name), None)
            is_bad = word is not None
            place = breaks[word] if isinstance(breaks, dict) and is_bad else None
            loss = float("nan") if is_bad else 1.0
            seen = Seen(probe.name, loss=loss, is_finite=not is_bad, location=place)
            seen.seconds = seconds
            probe = checks.send(seen)
    except StopIteration as stop:
        return {f.check: f for f in stop.value}


def test_break_of_one_sample_is_a_warning_that_says_how_far_it_is():
    found = answer(Subject(models={}, batches=[(X, Y)]), ["one sample of batch[0] all zero"])
    blank = found["edges/blank"]
    assert blank.status == "warn" and blank.action and blank.data["is_executed"]
    assert blank.why == "a real batch with 1 of 6 samples changed, every value within what was seen"


def test_break_with_data_that_nobody_would_feed_is_shown_with_pedantic_only():
    breaks = ["batch[0] all zero in a whole batch"]
    found = answer(Subject(models={}, batches=[(X, Y)]), breaks)
    assert "edges/blank-batch" not in found
    assert "--pedantic" in found["edges/far"].value and found["edges/far"].status == "pass"
    found = answer(Subject(models={}, batches=[(X, Y)], is_pedantic=True), breaks)
    assert found["edges/blank-batch"].status == "warn"


def test_batch_that_breaks_a_line_that_is_reported_already_is_not_called_finite():
    place = Location(file="train.py", line=3, op="aten.div")
    breaks = {"one sample of batch[0] all zero": place, "constant": place}
    found = answer(Subject(models={}, batches=[(X, Y)]), breaks)
    problems = [f for f in found.values() if f.is_problem]
    assert len(problems) == 1 and "more like it" in problems[0].value
    reported = {"edges/blank", "edges/constant"} & {f.check for f in found.values()}
    assert reported == {problems[0].check}


def test_batch_that_breaks_at_no_known_place_is_not_called_finite():
    bad = "one sample of batch[0] all zero"
    found = answer(Subject(models={}, batches=[(X, Y)]), [bad], heals="traced")
    assert found["edges/blank"].status == "skip"
    assert found["edges/blank"].value.endswith("broke it, where is not known")


def test_steps_that_take_long_are_not_taken_twice():
    asked = []
    answer(Subject(models={}, batches=[(X, Y)] * 8), [], seconds=1.0, asked=asked)
    assert [name for name in asked if "run ahead" in name] == [
        f"step {i}, run ahead" for i in (1, 2, 3, 4)
    ]


def test_last_batch_of_one_sample_is_certain_only_where_the_loader_makes_one():
    odd = loader(X[:5].repeat(5, 1, 1), Y[:5].repeat(5), batch_size=6)
    even = loader(X, Y, batch_size=6)
    found = answer(Subject(models={}, batches=[(X, Y)], loaders=[odd]), ["(1 sample)"])
    assert found["edges/size"].status == "fail"
    found = answer(Subject(models={}, batches=[(X, Y)], loaders=[even]), ["a batch of 1 sample"])
    assert "edges/size" not in found


def test_training_that_breaks_by_itself_is_not_asked_further():
    found = answer(Subject(models={}, batches=[(X, Y)]), ["the batch as it is"])
    assert [f.status for f in found.values()] == ["skip"]


def test_step_of_its_own_that_breaks_is_a_fail():
    batches = [(X, Y)] * 4
    found = answer(Subject(models={}, batches=batches), ["step 3, run ahead", "step 3, traced"])
    assert found["edges/ahead"].status == "fail"
    assert found["edges/ahead"].value.startswith("step 2 of a copy of the training")


def divides(is_safe=False):
    torch.manual_seed(0)
    model = nn.Linear(5, 1)

    def loss_fn(model, batch):
        x, mask = batch
        kept = mask.sum(1).clamp(min=1) if is_safe else mask.sum(1)
        return ((model(x).squeeze(-1) * mask).sum(1) / kept).square().mean()

    masks = [torch.rand(4, 6) > 0.4 for _ in range(5)]
    for mask in masks:
        mask[:, 0] = True
    loads = [(torch.randn(4, 6, 5), mask) for mask in masks]
    return model, loss_fn, loads, torch.optim.Adam(model.parameters())


def test_finding_has_the_place_and_the_cause_of_an_incident_and_its_batch_is_kept(tmp_path):
    report = check(divides, only=["edges"], save_dir=tmp_path)
    (found,) = (f for f in report.findings if f.is_problem)
    assert found.location.op == "aten.div" and found.location.source.endswith(".square().mean()")
    assert found.location.module is None and found.location.file == __file__
    assert found.cause == "zero_denominator"
    assert CheckReport.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["findings"][0]["cause"] == "zero_denominator"
    incident, folder = read_incident(Path(found.data["saved"]))
    assert incident.diagnosis.cause == "zero_denominator"
    assert sorted(p.name for p in (tmp_path / "incidents").iterdir()) == [folder.name]


def test_first_batch_that_breaks_is_reported_with_its_place_and_cause():
    model, loss_fn, loads, optimizer = divides()
    loads[0][1][2] = False
    found = check((model, loss_fn, loads, optimizer), only=["forward"]).findings
    (first,) = [f for f in found if f.is_problem]
    assert (first.check, first.location.op, first.cause) == (
        "forward/finite",
        "aten.div",
        "zero_denominator",
    )
    assert first.data["is_executed"] and "safe_div" in first.action


def test_safe_twin_is_ready():
    report = check(lambda: divides(is_safe=True), only=["edges"])
    assert [f for f in report.findings if f.is_problem] == []


def test_training_is_afterwards_what_it_was():
    parts = divides()
    before = {k: v.clone() for k, v in parts[0].state_dict().items()}
    check(parts, only=["edges"])
    assert all(torch.equal(v, before[k]) for k, v in parts[0].state_dict().items())
    assert not parts[3].state


def rounds_to_one():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def loss_fn(model, x):
        u = torch.rand(1).bfloat16()
        return model(x).square().mean() / (1 - u).float().squeeze()

    return (
        model,
        loss_fn,
        [torch.randn(4, 4) for _ in range(4)],
        torch.optim.SGD(model.parameters(), lr=0.01),
    )


def test_unlucky_draw_says_at_which_step_it_is_to_be_expected():
    found = {f.check: f for f in check(rounds_to_one, only=["edges"]).findings}["edges/random"]
    assert found.status == "fail" and "expected at step ~512" in found.why
    assert found.data["probability"] == pytest.approx(1 / 512)


def test_memory_that_nobody_wrote_is_full_of_nan_and_only_inside():
    with unwritten_memory():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    with UnluckyRandom(0.0) as mode:
        torch.rand(4, 2)
    assert mode.chance == 8 * 2.0**-24


def test_own_batch_that_breaks_on_later_weights_is_no_fault_of_the_memory():
    subject = Subject(models={}, batches=[torch.ones(2)])
    search = Search(subject, subject.batches, is_later=True)
    memory = Candidate("memory", "memory that was never written", list, "likely")
    steps = search.try_one(memory, subject.batches[0], Draw(memory, unwritten_memory))
    assert next(steps).around is unwritten_memory
    broken = Seen("", loss=math.nan, is_finite=False)
    assert steps.send(broken).around is None
    with pytest.raises(StopIteration):
        steps.send(broken)
    assert [f.check for f in search.findings(Ahead())] == ["edges/ahead"]

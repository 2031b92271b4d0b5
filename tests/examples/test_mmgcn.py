"""The MMGCN example: broken in fp16, caught at the line that breaks it, and trained once fixed."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from tests.examples.runs import EXAMPLES, incidents_of, three_runs

from stayfinite.checkpoint import scan_file
from stayfinite.numerics import safe_sqrt

HERE = EXAMPLES / "mmgcn"
FAILING_STEP = 5
LINE = "loss = -torch.mean(torch.log(torch.sigmoid(score)))"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders and outputs of the three runs, two epochs of the broken one."""
    base = tmp_path_factory.mktemp("mmgcn")
    return base, three_runs("mmgcn", 2, base)


@pytest.fixture(scope="module")
def incidents(runs):
    return incidents_of(runs[0])


def recalls(output):
    """Recall of the model and of the popularity baseline, from the last line."""
    last = output.out.strip().splitlines()[-1]
    found = re.match(r"recall@20 ([\d.]+) \(popularity ([\d.]+)\)", last)
    assert found, last
    return float(found[1]), float(found[2])


@pytest.mark.slow
def test_plainly_the_loss_is_inf_and_its_mean_nan(runs):
    lines = runs[1]["plain"].out.splitlines()
    assert "loss 2.3025" in lines[0]
    assert re.search(r"batch +5/\d+  loss inf  mean inf", lines[1])
    assert "mean nan" in lines[2]
    assert any(line.startswith("epoch 0 train loss nan") for line in lines)
    recall, popularity = recalls(runs[1]["plain"])
    assert recall < popularity * 1.15


@pytest.mark.slow
def test_caught_at_that_step_with_the_line_and_the_cause(incidents):
    first = incidents[0]
    assert first.event.step == FAILING_STEP
    assert (first.event.symptom, first.event.phase) == ("loss", "loss")
    assert first.location.op == "aten.log"
    assert first.location.source == LINE
    assert Path(first.location.file) == HERE / "train.py"
    assert first.diagnosis.cause == "low_precision_underflow"
    assert {i.location.source for i in incidents} == {LINE}


@pytest.mark.slow
def test_the_proof_and_the_fix_of_the_line(incidents):
    diagnosis = incidents[0].diagnosis
    experiment = diagnosis.experiments[0]
    assert (experiment.name, experiment.outcome) == ("higher_precision", "finite")
    assert diagnosis.fixes[0].status == "proved"
    assert "+        loss = -torch.mean(F.logsigmoid(score))" in diagnosis.fixes[0].diff


@pytest.mark.slow
def test_the_state_stays_clean_and_the_run_goes_on(runs, incidents):
    base, outputs = runs
    assert all(i.action.kind == "skipped" for i in incidents)
    assert 1 <= len(incidents) < 20
    assert scan_file(base / "guarded" / "mmgcn.pt").verdict == "healthy"
    assert re.search(r"epoch 1 train loss 0\.\d+", outputs["guarded"].out)
    scale = [
        float(re.findall(r"scale ([\d.e-]+)", outputs[which].out)[-1])
        for which in ("plain", "guarded")
    ]
    assert scale[1] > scale[0], "the bad batches did not cost the loss scale anything"


@pytest.mark.slow
def test_fixed_it_beats_popularity_by_far(runs):
    output = runs[1]["fixed"]
    assert "nan" not in output.out
    assert "inf" not in output.out
    recall, popularity = recalls(output)
    assert recall > 1.4 * popularity
    saved = torch.load(runs[0] / "fixed" / "mmgcn.pt", weights_only=True)["model"]
    assert "id_embedding" in saved


@pytest.mark.slow
def test_what_is_not_registered_is_not_saved(runs):
    saved = torch.load(runs[0] / "plain" / "mmgcn.pt", weights_only=True)["model"]
    assert "id_embedding" not in saved
    assert not any("preference" in name for name in saved)


def test_the_epsilon_of_the_guide_changes_nothing_in_half_precision():
    score = torch.tensor([-18.0, 0.0], dtype=torch.float16, requires_grad=True)
    plain = torch.log(torch.sigmoid(score))
    with_epsilon = torch.log(torch.sigmoid(score) + 1e-8)
    assert plain[0] == -torch.inf
    assert torch.equal(with_epsilon, plain)
    fixed = torch.nn.functional.logsigmoid(score)
    fixed.sum().backward()
    assert fixed[0] == -18
    assert score.grad[0] == 1


def test_in_half_precision_the_epsilon_under_a_root_is_zero():
    x = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    torch.sqrt(x * x + 1e-8).backward()
    assert x.grad.isnan()
    x.grad = None
    safe_sqrt(x * x).backward()
    assert x.grad == 0


def test_the_demo_names_a_line_of_the_script():
    demo = yaml.safe_load((HERE / "demo.yaml").read_text())
    assert demo["expect"]["line"] in (HERE / "train.py").read_text()
    assert demo["expect"]["line"] not in (HERE / "train_fixed.py").read_text()

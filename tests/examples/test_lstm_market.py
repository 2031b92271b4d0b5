"""The market example: one feature beyond fp16, a poisoned batch norm; caught, and trained once fixed."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tests.examples.runs import EXAMPLES, incidents_of, python, three_runs

from stayfinite.checkpoint import scan_file
from stayfinite.records import Incident

HERE = EXAMPLES / "lstm_market"
FAILING_STEP = 15
LINE = "x = torch.tanh(self.project(sequence))"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders and outputs of the three runs, three epochs of the broken one."""
    base = tmp_path_factory.mktemp("lstm_market")
    return base, three_runs("lstm_market", 3, base)


@pytest.fixture(scope="module")
def incidents(runs):
    return incidents_of(runs[0])


def figures(output):
    """Accuracy, that of the majority class, and balanced accuracy, from the last line."""
    last = output.out.strip().splitlines()[-1]
    found = re.match(
        r"accuracy ([\d.]+) \(majority class ([\d.]+)\)  balanced accuracy ([\d.]+)", last
    )
    assert found, last
    return tuple(map(float, found.groups()))


@pytest.mark.slow
def test_plainly_one_batch_corrupts_every_validation(runs):
    base, outputs = runs
    lines = outputs["plain"].out.splitlines()
    is_nan = [line.endswith("loss=nan") for line in lines if line.startswith("Train")]
    assert is_nan.index(True) == FAILING_STEP // 2, "the losses before it are numbers"
    assert sum(is_nan) < len(is_nan) / 4, "the weights stay finite: the GradScaler skips"
    assert sum("Val" in line and "loss=nan" in line for line in lines) == 3
    assert figures(outputs["plain"])[2] == pytest.approx(1 / 3, abs=0.01)
    report = scan_file(base / "plain" / "lstm_market.pt")
    bad = {f.tensor for f in report.findings if f.code == "nonfinite_tensor"}
    assert bad == {"model.norm.running_mean", "model.norm.running_var"}


@pytest.mark.slow
def test_caught_at_that_step_with_the_line_and_the_cause(incidents):
    first = incidents[0]
    assert first.event.step == FAILING_STEP
    assert first.event.symptom == "loss"
    assert (first.location.op, first.location.module) == ("aten._to_copy", "project")
    assert first.location.source == LINE
    assert Path(first.location.file) == HERE / "model.py"
    assert first.diagnosis.cause == "low_precision_overflow"
    # The batch before is tried as well, unless a snapshot has just been taken behind it.
    outcomes = {e.name: e.outcome for e in first.diagnosis.experiments}
    assert outcomes.pop("higher_precision") == "finite"
    assert outcomes in ({}, {"previous_batch": "finite"})
    birth = next(link for link in first.location.chain if link.role == "birth")
    assert birth.inputs[0].stats.max > 65504
    assert {i.diagnosis.cause for i in incidents} == {"low_precision_overflow"}


@pytest.mark.slow
def test_the_state_stays_clean_and_the_same_script_learns(runs, incidents):
    base, outputs = runs
    assert all(i.action.kind == "skipped" for i in incidents)
    assert scan_file(base / "guarded" / "lstm_market.pt").verdict == "healthy"
    vals = [line for line in outputs["guarded"].out.splitlines() if line.startswith("Val")]
    assert len(vals) == 3
    assert not any("nan" in line for line in vals)
    assert figures(outputs["guarded"])[2] > 0.7


@pytest.mark.slow
def test_fixed_it_learns_and_half_precision_comes_back(runs):
    output = runs[1]["fixed"]
    assert "nan" not in output.out
    accuracy, majority, balanced = figures(output)
    assert accuracy > majority + 0.03
    assert balanced > 0.8
    vals = [line for line in output.out.splitlines() if line.startswith("Val")]
    assert vals[-1].endswith("(float16 at scale 4096)")
    assert "fp32 -> float16 at scale 1024" in output.err


def test_the_demo_names_a_line_of_the_model():
    demo = yaml.safe_load((HERE / "demo.yaml").read_text())
    assert demo["expect"]["line"] in (HERE / "model.py").read_text()


def test_the_config_keys_of_the_ladder_are_there():
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    script = "".join((HERE / name).read_text() for name in ("train.py", "model.py"))
    for key in config:
        assert f'"{key}"' in script, f"{key} controls nothing"


def load_example(name):
    """A script of the example, whose neighbors (data, model) have the names of others' modules."""
    others = {n: sys.modules.pop(n, None) for n in ("data", "model", name)}
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))
        for other, module in others.items():
            sys.modules.pop(other, None)
            if module is not None:
                sys.modules[other] = module


@pytest.fixture(scope="module")
def first_batch(tmp_path_factory):
    """The variant that is NaN from its first batch on, plainly and under the guard."""
    folder = tmp_path_factory.mktemp("first_batch")
    config = yaml.safe_load((HERE / "config_first_batch.yaml").read_text())
    config |= {"epochs": 1, "train_sequences": 320, "val_sequences": 64, "hidden_size": 8}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    script = (HERE / "train_first_batch.py", "--config", "config.yaml")
    plain = python(folder, *script).out
    python(folder, "-m", "stayfinite", "run", "--run-dir", "run", *script)
    paths = sorted((folder / "run" / "incidents").glob("*/incident.json"))
    return plain, [Incident.from_json(path.read_text()) for path in paths]


@pytest.mark.slow
def test_focal_loss_class_balance_and_mixup_are_nan_in_the_first_batch(first_batch):
    plain, incidents = first_batch
    assert plain.splitlines()[0].endswith("loss=nan")
    first = incidents[0]
    assert (first.event.step, first.diagnosis.cause) == (0, "zero_denominator")
    assert first.location.source.strip() == "weights = len(target) / (CLASSES * target.sum(0))"
    assert first.diagnosis.fixes[0].status == "proved"


@pytest.mark.parametrize(
    ("key", "value", "survives"),
    [
        ("use_focal_loss", False, True),
        ("use_class_weights", False, True),
        ("mixup_alpha", 0.0, True),
        ("use_amp", False, False),
        ("lr", 0.0004, False),
    ],
)
def test_without_one_of_the_three_it_would_have_survived(key, value, survives):
    """Steps 3 and 5 of the guide help here; its first and its fourth do not."""
    config = yaml.safe_load((HERE / "config_first_batch.yaml").read_text()) | {key: value}
    torch.manual_seed(0)
    module = load_example("train_first_batch")
    criterion = module.BalancedFocalLoss(config)
    _, target = module.mixed(
        torch.randn(64, 4), torch.ones(64, dtype=torch.long), config["mixup_alpha"]
    )
    assert bool(criterion(torch.randn(64, 3), target).isfinite()) is survives

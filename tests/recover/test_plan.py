"""A plan that a training follows: judged step by step, its changes made while it runs."""

import json
import logging

import pytest
import torch

from stayfinite import Guard, Stage, StagedPlan, UsageError
from stayfinite.errors import StageFailedError

PLAN = """
stages:
  - name: validate
    steps: 4
    metric: val acc
    metric_above: 0.5
  - name: scale up
    steps: 4
    changes: {lr: 1.5x, weight_decay: 1e-4, batch_size: 48}
"""


def training(lr=0.1):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def loss_fn(model, x):
    return model(x).pow(2).mean()


def make(plan, tmp_path=None, lr=0.1, **more):
    model, optimizer = training(lr)
    return Guard(model, optimizer, plan=plan, run_dir=tmp_path, **more), optimizer


@pytest.fixture
def file(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


def test_a_stage_that_passes_changes_the_running_optimizer(file, capsys):
    guard, optimizer = make(file)
    with guard:
        for i in range(8):
            guard.step(loss_fn, torch.ones(4, 2))
            print(f"epoch {i}: val_acc = {50 + i} %")
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.15)
        assert optimizer.param_groups[0]["weight_decay"] == 1e-4
        assert guard.plan.has_passed
    reported = capsys.readouterr().err
    assert "stage 'validate' has passed" in reported
    assert "the learning rate is 0.15 (was 0.1)" in reported
    assert "batch_size cannot be changed while it runs" in reported
    assert "every stage has passed" in reported


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (lambda i: print("val acc: 0.4"), "val acc is 0.4, wanted is above 0.5"),
        (lambda i: None, "'val acc' was not printed or logged in this stage"),
    ],
)
def test_a_figure_that_is_not_good_enough_ends_the_run(file, says, reason):
    guard, _ = make(file)
    with guard, pytest.raises(StageFailedError, match=f"stage 'validate' .*{reason}"):
        for i in range(8):
            says(i)
            guard.step(loss_fn, torch.ones(4, 2))
    assert guard.plan.reports()[0].num_steps == 4


def test_a_logged_figure_counts_as_a_printed_one(file):
    guard, _ = make(file)
    with guard:
        for _ in range(4):
            logging.getLogger("t").warning("val/acc %.2f", 0.75)
            guard.step(loss_fn, torch.ones(4, 2))
    assert guard.plan.reports()[0].metric == 0.75


def test_nothing_is_patched_for_a_plan_without_a_figure_and_all_is_back_after_one(file):
    before = (print, logging.Logger.handle)
    guard, _ = make(StagedPlan([Stage(name="a", steps=9)]))
    assert (print, logging.Logger.handle) == before
    guard.close()
    guard, _ = make(file)
    assert __builtins__["print"] is not before[0]
    guard.close()
    assert (print, logging.Logger.handle) == before


def test_an_incident_ends_a_stage_that_allows_none():
    guard, _ = make(StagedPlan([Stage(name="validate", steps=5)]))
    with guard, pytest.raises(StageFailedError, match="1 incidents, allowed are 0"):
        for x in (torch.ones(4, 2), torch.full((4, 2), float("nan"))):
            guard.step(loss_fn, x)
    assert len(guard.incidents) == 1


def test_a_loss_that_rises_ends_the_run_and_a_healthy_twin_goes_on():
    plan = [{"name": "a", "steps": 6}]
    guard, _ = make(StagedPlan.from_data(plan), lr=2.0)
    with guard, pytest.raises(StageFailedError, match="instead of down"):
        for _ in range(6):
            guard.step(loss_fn, torch.ones(4, 2))
    guard, _ = make(StagedPlan.from_data(plan))
    with guard:
        for _ in range(6):
            guard.step(loss_fn, torch.ones(4, 2))
    assert guard.plan.has_passed


def test_a_schedule_keeps_its_shape_under_a_new_rate():
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    stages = [Stage(name="a", steps=2), Stage(name="b", steps=2, changes={"lr": 0.2})]
    guard = Guard(model, optimizer, scheduler, plan=StagedPlan(stages))
    with guard:
        for _ in range(4):
            guard.step(loss_fn, torch.ones(4, 2))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)  # half of 0.2


def test_a_factor_is_not_applied_twice_when_the_run_is_resumed(file, tmp_path):
    guard, optimizer = make(file, tmp_path)
    with guard:
        for _ in range(5):
            print("val acc 0.9")
            guard.step(loss_fn, torch.ones(4, 2))
        saved = optimizer.state_dict()
        weights = guard.state.roots[""].state_dict()
    progress = json.loads((tmp_path / "plan.json").read_text())
    assert progress["targets"] == {"scale up": pytest.approx(0.15)}
    guard, optimizer = make(file, tmp_path)
    with guard:
        optimizer.load_state_dict(saved)
        guard.state.roots[""].load_state_dict(weights)
        for _ in range(3):
            guard.step(loss_fn, torch.ones(4, 2))
        assert guard.plan.has_passed
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.15)


def test_progress_of_another_plan_is_refused(file, tmp_path):
    (tmp_path / "plan.json").write_text('{"plan": {}}')
    with pytest.raises(UsageError, match="is not the progress of this plan"):
        make(file, tmp_path)


def test_wrong_plans_are_reported(tmp_path):
    (tmp_path / "p.yaml").write_text("just words")
    with pytest.raises(UsageError, match="must be a list of stages"):
        StagedPlan.from_file(tmp_path / "p.yaml")
    with pytest.raises(UsageError, match="`metric` goes with"):
        Stage(name="a", steps=1, metric="acc")
    with pytest.raises(UsageError, match="cannot read the plan"):
        StagedPlan.from_file(tmp_path / "none.yaml")

"""What a step takes, what fits, and what can be looked at before there is a training."""

import torch
from tests.preflight.test_cli_check import run  # noqa: F401 - a fixture
from torch import nn

from stayfinite.preflight.config.gather import Reading
from stayfinite.preflight.config.group import cost_of_failure
from stayfinite.preflight.resources import Measured, largest_batch
from stayfinite.preflight.runner.check import check

WIDTH, ROWS = 50, 16


def parts():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    return {
        "model": model,
        "loss_fn": lambda m, b: m(b).square().mean(),
        "loader": [torch.randn(ROWS, WIDTH) for _ in range(4)],
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
    }


def of(report, name):
    (found,) = [f for f in report.findings if f.check == f"resources/{name}"]
    return found


def test_what_is_held_and_what_a_batch_keeps_is_counted_byte_by_byte():
    torch.manual_seed(0)
    report = check(parts, only=["resources"])
    weights = 4 * (WIDTH * WIDTH + WIDTH + WIDTH + 1)
    held = of(report, "held").data
    assert held["parameters"] == held["gradients"] == weights
    assert held["optimizer"] == 2 * weights + 4 * 4  # two moments, and a counter for each
    # ReLU keeps its result, the last layer keeps it too (the same memory), square its input.
    assert held["activations"] == 4 * (ROWS * WIDTH + ROWS)


def test_half_precision_and_half_a_batch_are_measured_not_guessed():
    report = check(parts, only=["resources"])
    full, half = of(report, "fp32"), of(report, "bf16")
    assert "in use" in full.subject and "in use" not in half.subject
    assert "samples a second" in full.value
    per_row = 4 * (WIDTH + 1)
    fixed = sum(of(report, "held").data[k] for k in ("parameters", "gradients", "optimizer"))
    assert abs(full.data["largest"] - (0.9 * full.data["free"] - fixed) / per_row) < 2
    assert of(report, "fp16").value.count("no such arithmetic") == 1  # on a CPU
    assert "2 batches of 8 accumulated" in of(report, "accumulate").value
    assert report.exit_code == 0


def test_the_training_is_what_it_was_afterwards():
    built = parts()
    before = [p.clone() for p in built["model"].parameters()]
    check(lambda: built, only=["resources"])
    assert all(map(torch.equal, before, built["model"].parameters()))
    assert not built["optimizer"].state


def test_too_large_a_batch_says_which_one_fits(monkeypatch):
    home = "stayfinite.preflight.resources.free_host_memory"
    monkeypatch.setattr(home, lambda: 48_000.0)
    found = of(check(parts, only=["resources"]), "fp32")
    assert found.status == "warn" and found.data["needed"] < 48_000
    assert found.action == "use a batch of 7 and accumulate, or half precision"
    monkeypatch.setattr(home, lambda: 43_000.0)
    found = of(check(parts, only=["resources"]), "fp32")
    assert found.status == "fail" and "smaller model" in found.action


def test_a_line_through_two_measurements():
    line = Measured("fp32", 8, 9000, 0.1, half_rows=4, half_activations=5000)
    assert largest_batch(line, fixed=0, free=1000) == 0
    assert largest_batch(Measured("fp32", None, 9000, 0.1), 0, 1e9) is None


def test_resources_run_only_when_they_are_asked_for():
    assert not check(parts, skip=["edges", "stability", "precision"]).of_group("resources")


def test_the_machine_is_looked_at_before_there_is_a_training(run):  # noqa: F811
    out = run("--only", "environment")
    assert out.exit_code == 0, out.output
    assert "stayfinite check this machine" in out.stdout
    assert f"torch {torch.__version__}" in out.stdout
    assert "the model" not in out.stdout
    out = run("--only", "environment,data")
    assert out.exit_code == 2 and "no target" in out.output


def test_a_config_says_what_a_failure_would_cost():
    steps = [Reading("save_every", 1000, "c: save_every"), Reading("total_steps", 98_000, "")]
    (found,) = cost_of_failure([*steps, Reading("lr", 1.0, "")])
    assert (found.status, found.value) == (
        "pass",
        "a failure costs up to 1,000 steps: 1 % of the run",
    )
    (found,) = cost_of_failure([Reading("save_every", 98_000, "c"), steps[1]])
    assert found.status == "warn" and found.action.startswith("set 9,800")
    (found,) = cost_of_failure([Reading("eval_every", 500, "c")])
    assert found.value == "a model that gets worse is seen up to 500 steps late"


def test_the_temperatures_of_a_list_and_of_a_buffer_are_checked_one_by_one():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.student_temp = 0.1
            self.register_buffer("teacher_temp", torch.tensor([0.07, 0.001]))

        def forward(self, x):
            return (x / self.teacher_temp.max()).mean()

    built = parts()
    built["model"].add_module("criterion", Loss())
    built["loss_fn"] = lambda m, b: m(b).square().mean()
    report = check(lambda: built, only=["config"], config={"temps.0": 0.1, "temps.1": 0.0005})
    subjects = [f.subject for f in report.findings if f.check == "config/temperature"]
    assert subjects == ["criterion.teacher_temp[1]", "temps.1"]

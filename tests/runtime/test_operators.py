"""The early warning of an operator whose value approaches a limit, while loss and gradients stay ordinary."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stayfinite import Guard


class Ratio(nn.Module):
    """A softmax by hand: ordinary for the loss until its exponential overflows."""

    def __init__(self, start):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(start))

    def forward(self, x):
        weights = torch.exp(self.scale * x)
        return (weights / weights.sum()).square().sum()


class FarLog(nn.Module):
    """The argument of its logarithm falls by a constant factor."""

    def __init__(self, floor):
        super().__init__()
        self.scale, self.floor = nn.Parameter(torch.tensor(30.0)), floor

    def forward(self, x):
        return torch.log(torch.exp(-self.scale * x) + self.floor).mean()


def train(model, growth, num_steps=60, dtype=torch.float32):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Guard(model, optimizer, policy="skip") as guard:
        for _ in range(num_steps):
            with torch.no_grad():
                model.scale.add_(growth)
            guard.step(lambda m, b: m(b), torch.linspace(0.9, 1, 8, dtype=dtype))
            if guard.incidents:
                break
    return guard, [w for w in guard.warnings if w.kind == "headroom"]


def test_exponential_that_will_overflow_is_announced_with_its_line():
    guard, told = train(Ratio(30.0), 1.3)
    (warning,) = told
    failed_at = guard.incidents[0].event.step
    assert warning.step < failed_at - 3
    assert abs(warning.step + warning.value - failed_at) < 4
    assert "weights = torch.exp(self.scale * x)" in warning.message
    assert "test_operators.py" in warning.name and warning.name.startswith("exp at")


def test_trend_that_is_clear_at_the_first_near_look_is_announced_at_once():
    guard, told = train(Ratio(2.0), 2.5)
    assert [w.name.partition(":")[2] != "" for w in told] == [True]
    assert told[0].step < guard.incidents[0].event.step


def test_operator_that_is_written_twice_is_announced_without_a_line():
    class Twice(Ratio):
        def forward(self, x):
            small = torch.exp(-x).sum()
            return small + torch.exp(self.scale * x).clamp(max=1).sum()

    _, told = train(Twice(30.0), 1.3)
    assert [w.name for w in told] == ["exp"]


def test_exponential_that_stays_is_not_announced():
    guard, told = train(Ratio(60.0), 0.0)
    assert not told and not guard.incidents


def test_argument_of_a_logarithm_that_falls_to_zero_is_announced():
    model = FarLog(0.0)
    model.forward = lambda x: torch.log(torch.sigmoid(-model.scale * x)).mean()
    guard, told = train(model, 1.7)
    assert told and guard.incidents and told[0].step < guard.incidents[0].event.step
    assert told[0].name.startswith("log at") and "is 0 in float32" in told[0].message


def test_floor_below_the_argument_keeps_it_silent():
    guard, told = train(FarLog(1e-30), 1.7)
    assert not told and not guard.incidents


def test_checkpointed_part_is_not_computed_again_for_a_look():
    calls = []

    class Counted(Ratio):
        def forward(self, x):
            def run(x):
                calls.append(1)
                return torch.exp(self.scale * x)

            return checkpoint(run, x, use_reentrant=False).mean()

    train(Counted(1.0), 0.0, num_steps=20)
    assert len(calls) == 2 * 20


def test_anomaly_mode_is_never_on():
    seen = set()

    class Watching(Ratio):
        def forward(self, x):
            seen.add((torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()))
            return super().forward(x)

    _, told = train(Watching(30.0), 1.3, num_steps=30)
    assert told and seen == {(False, True)}


def test_the_scripts_own_anomaly_mode_is_left_alone():
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        _, told = train(Ratio(30.0), 1.3, num_steps=30)
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert told and "torch.exp" in told[0].message


def test_no_look_when_the_budget_is_spent():
    model = Ratio(1.0)
    with Guard(model, torch.optim.SGD(model.parameters(), lr=0.0)) as guard:
        watch = guard.engine.monitor.operators
        watch._spent = 1e9
        for _ in range(20):
            guard.step(lambda m, b: m(b), torch.linspace(0.9, 1, 8))
        assert watch._spent - 1e9 < 1 and not watch.is_due


def test_an_error_in_a_look_does_not_end_the_training(monkeypatch, capsys):
    def broken(loss):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("stayfinite.runtime.warn.operators.operands", broken)
    guard, told = train(Ratio(1.0), 0.0, num_steps=12)
    assert guard.engine.num_applied == 12 and not told
    assert capsys.readouterr().err.count("a fault of ours") == 1

"""The early warning of a run that diverges, and the silence of one that does not."""

import torch
from torch import nn

from stayfinite import Guard


def train(lr, num_steps=12, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = torch.randn(16, 4, dtype=dtype), torch.randn(16, 1, dtype=dtype)
    with Guard(model, optimizer) as guard:
        for _ in range(num_steps):
            guard.step(lambda m, b: (m(b[0]) - b[1]).square().mean(), (x, y))
            if guard.incidents:
                break
    return guard, [w for w in guard.warnings if w.kind == "headroom"]


def test_divergence_is_announced_before_the_first_non_finite_value(capsys):
    guard, reported = train(lr=2.0)
    assert guard.incidents and reported[0].step < guard.incidents[0].event.step
    text = reported[0].message
    assert (
        "has grown from" in text
        and "the range of float32 in about" in text
        and "the largest gradient is in" in text
    )
    assert f"step {reported[0].step}: warning: {text}" in capsys.readouterr().err


def test_each_climb_is_reported_once():
    _, reported = train(lr=2.0)
    assert len({w.symptom for w in reported}) == len(reported)


def test_healthy_training_is_not_warned_of():
    guard, reported = train(lr=0.01, num_steps=60)
    assert not guard.incidents and not reported


def test_weights_that_climb_are_seen_with_the_deep_checks():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = Guard(model, optimizer)
    with guard:
        guard.step(lambda m, b: m(b).sum(), torch.ones(1, 2))
        for step in range(1, 6):
            with torch.no_grad():
                model.weight.mul_(1e4)
            guard.engine.monitor.headroom.check_weights(guard.engine.monitor, step)
    reported = [w for w in guard.warnings if w.kind == "headroom"]
    assert [w.name for w in reported] == ["weight"] and "largest weight of weight" in reported[
        0
    ].message

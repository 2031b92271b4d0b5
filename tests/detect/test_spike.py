"""A spike is seen early; nothing non-finite ever enters the baseline."""

import math
import random

import pytest
import torch

from stayfinite import Guard, NonFiniteError, Policy, Settings
from stayfinite.detect import SpikeWatch

BLOOM = [0.242, 0.947, 2.39, 15.9, 145.0, 960.0]
"""Gradient norms of steps 31214 to 31219 in the public chronicle of the BLOOM-176B training
(bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles.md)."""


def first_warning(values, watch):
    return next((i for i, v in enumerate(values) if watch.is_first(watch.note(i, v))), None)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_the_bloom_spike_is_reported_by_its_third_step(noise):
    rng = random.Random(0)
    watch = SpikeWatch()
    for i in range(200):
        assert watch.note(i, 0.24 + noise * rng.uniform(-1, 1)) is None
    assert first_warning(BLOOM, watch) <= 2


def test_even_without_a_history():
    assert first_warning(BLOOM, SpikeWatch()) == 2


def test_a_nan_does_not_blind_it():
    """The wrong way beside it: a running mean that took the NaN in never warns again."""
    watch = SpikeWatch()
    mean, warned = 0.0, 0
    for i in range(100):
        value = math.nan if i == 50 else 1.0 + 0.01 * (i % 5)
        watch.note(i, value)
        mean = 0.9 * mean + 0.1 * value
        warned += value > 5 * mean
    assert watch.note(100, 50.0).is_alarm
    assert not 5 * mean < 50.0 and math.isnan(mean)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_leave_no_trace(bad):
    rng = random.Random(1)
    values = [1 + 0.2 * rng.random() for _ in range(300)]
    clean, dirty = SpikeWatch(), SpikeWatch()
    for i, value in enumerate(values):
        for _ in range(3):
            assert dirty.note(i, bad) is None
        assert clean.note(i, value) == dirty.note(i, value)
    assert vars(clean) == vars(dirty)


def test_an_ordinary_training_is_silent():
    """Losses that fall, and log-normal gradient norms as small batches give them: 120,000 values."""
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        loss, norm = SpikeWatch(ratio=1.5), SpikeWatch()
        for i in range(3000):
            level = 0.5 + 9.5 * math.exp(-i / 400)
            found.append(loss.note(i, level * (1 + 0.05 * rng.gauss(0, 1))))
            found.append(norm.note(i, 1.3 * math.exp(0.25 * rng.gauss(0, 1))))
    warned = [s for s in found if s is not None]
    assert len(warned) <= 2 and not any(s.is_alarm for s in warned)


def test_it_gets_used_to_a_new_level():
    watch = SpikeWatch()
    reported = [watch.is_first(watch.note(i, 1.0 if i < 100 else 10.0)) for i in range(300)]
    assert reported.index(True) == 100 and sum(reported) == 1
    assert watch.note(300, 10.1) is None


def test_going_back_forgets():
    watch = SpikeWatch()
    for i in range(40):
        watch.note(i, 1.0 if i < 20 else 100.0)
    watch.forget_after(20)
    assert watch.note(40, 100.0).is_alarm


@pytest.mark.parametrize("value", [0.0, -5.0, 1e-30, 1e30])
def test_any_level_is_a_level(value):
    watch = SpikeWatch()
    for i in range(50):
        assert watch.note(i, value) is None


# -- in a training --------------------------------------------------------------------------------


def train(policy, factors, form="step", **settings):
    """Gradient norms that are proportional to the factors; the loss stays small."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    options = {"diagnose": False, "budget": 1e-9, "max_batches": 4, **settings}
    guard = Guard(model, optimizer, clip_norm=1e9, policy=policy, settings=Settings(**options))
    applied = []
    with guard:
        for f in factors:
            x = torch.ones(4, 1)
            applied.append(guard.step(lambda m, x, f=f: (m(x) * f).mean() + 10, x).applied)
    return guard, applied


USUAL = [0.24 + 0.01 * (i % 3) for i in range(20)]


def test_a_training_is_warned_of(capsys):
    guard, applied = train("skip", USUAL + BLOOM)
    assert all(applied) and guard.incidents == []
    warning = guard.warnings[0]
    assert (warning.kind, warning.name, warning.phase) == ("spike", "grad_norm", "backward")
    assert warning.step <= len(USUAL) + 2
    assert "warning: the gradient norm is " in capsys.readouterr().err


def test_a_spike_in_every_cycle_is_kept_each_time_and_reported_ever_more_seldom(capsys):
    guard, _ = train("skip", (USUAL + [50.0]) * 9)
    assert [w.name for w in guard.warnings].count("grad_norm") == 9
    reported = [t for t in capsys.readouterr().err.splitlines() if "gradient norm" in t]
    assert len(reported) == 5 and reported[-1].endswith("(8 such warnings by now)")


def test_the_policy_can_skip_spikes():
    guard, applied = train(Policy(on_spike="skip"), USUAL + [50.0] + USUAL)
    assert applied.index(False) == len(USUAL) and applied.count(False) == 1
    (incident,) = guard.incidents
    assert (incident.event.kind, incident.action.kind) == ("spike", "skipped")
    assert guard.ledger.steps() == [len(USUAL)]


def test_the_policy_can_roll_back():
    guard, _ = train(Policy(on_spike="rollback"), [*USUAL, 0.24, 50.0, *USUAL])
    (incident,) = guard.incidents
    assert incident.action.kind == "rolled_back" and incident.action.restored_step == 20
    assert guard.ledger.steps() == [20, 21]


def test_the_policy_can_raise():
    with pytest.raises(NonFiniteError, match="is far above what is usual; raised"):
        train(Policy(on_spike="raise"), [*USUAL, 50.0])


def test_spikes_can_be_ignored(capsys):
    guard, _ = train(Policy(on_spike="ignore"), USUAL + BLOOM)
    assert guard.warnings == [] and capsys.readouterr().err == ""

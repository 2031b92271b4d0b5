"""Traps that others fell into: the wrong way shown to fail, the guard's way beside it."""

import gc
import math

import pytest
import torch
from torch import nn

from stayfinite import BudgetExceededError, Guard, Policy, Settings

QUICK = Settings(diagnose=False)
NAN, INF = math.nan, math.inf
GOOD = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
BAD = torch.tensor([[1.0, NAN], [3.0, -1.0]])
HUGE = torch.tensor([[1.0, INF], [3.0, -1.0]])


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def squares(model, x):
    return model(x).pow(2).mean()


def all_finite(model, optimizer):
    state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return all(torch.isfinite(t).all() for t in [*model.state_dict().values(), *state])


def train(step, batches=(GOOD, BAD, GOOD), make=torch.optim.AdamW):
    """(model, optimizer) after `step(model, optimizer, loss)` on each batch."""
    model = linear()
    optimizer = make(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        step(model, optimizer, squares(model, x))
    return model, optimizer


def under_guard(batches=(GOOD, BAD, GOOD), make=torch.optim.AdamW, **options):
    model = linear()
    optimizer = make(model.parameters(), lr=0.1)
    with Guard(model, optimizer, settings=QUICK, **options) as guard:
        for x in batches:
            guard.step(squares, x)
    return model, optimizer, guard


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))


# -- 0 * NaN is NaN -----------------------------------------------------------------------------


def multiply_by_zero(model, optimizer, loss):
    """The skip of two well-known training stacks."""
    loss.backward()
    is_ok = torch.isfinite(loss.detach()).float()
    for p in model.parameters():
        p.grad.mul_(is_ok)
    optimizer.step()


def test_multiplying_by_zero_does_not_skip():
    model, optimizer = train(multiply_by_zero)
    assert not all_finite(model, optimizer), "the trap is gone: 0 * NaN was not NaN"
    model, optimizer, guard = under_guard()
    assert all_finite(model, optimizer)
    assert len(guard.incidents) == 1


# -- zeroed gradients still move weights --------------------------------------------------------


def zero_and_step(model, optimizer, loss):
    loss.backward()
    for p in model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0).mul_(math.isfinite(loss.item()))
    optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.AdamW,
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
        lambda p, lr: torch.optim.SGD(p, lr=lr, weight_decay=0.1),
    ],
    ids=["moments", "momentum", "weight decay"],
)
def test_zeroing_gradients_and_stepping_is_not_skipping(make):
    never, _ = train(zero_and_step, (GOOD, GOOD), make)
    zeroed, _ = train(zero_and_step, (GOOD, BAD, GOOD), make)
    assert not same(never, zeroed), "the trap is gone: a step with zero gradients moved nothing"
    skipped, _, _ = under_guard((GOOD, BAD, GOOD), make)
    assert same(skipped, never)


# -- clip with one Inf --------------------------------------------------------------------------


class OneInfiniteGradient(nn.Module):
    """sqrt'(0) is infinite: so is the gradient of `a` at x = 0, while that of `b` is ordinary."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (torch.sqrt(self.a - self.a.detach() + x) + self.b).sum()


def test_clipping_spreads_one_infinity_over_every_gradient():
    x = torch.zeros(1)
    model = OneInfiniteGradient()
    model(x).backward()
    assert torch.isinf(model.a.grad).all()
    assert torch.isfinite(model.b.grad).all()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert torch.isnan(model.a.grad).all(), "the trap is gone"
    assert not model.b.grad.any(), "an ordinary gradient was kept"


@pytest.mark.parametrize("form", ["step", "loop"])
def test_clip_look_at_the_norm_skip(form):
    model = OneInfiniteGradient()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [torch.ones(1), torch.zeros(1), torch.ones(1)]
    with Guard(model, optimizer, clip_norm=1.0, settings=QUICK) as guard:
        for x in batches if form == "step" else guard(batches):
            if form == "step":
                guard.step(lambda m, x: m(x), x)
                continue
            optimizer.zero_grad()
            model(x).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert [(i.event.step, i.event.name) for i in guard.incidents] == [(1, "a")]
    assert guard.incidents[0].location.op == "SqrtBackward0", "not what the clipping made of it"
    assert all_finite(model, optimizer)


# -- skipping for ever --------------------------------------------------------------------------


def test_skipping_for_ever_is_not_possible():
    with pytest.raises(BudgetExceededError):
        under_guard([GOOD] + [BAD] * 200)


def test_the_nan_is_never_accepted_in_the_end():
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, policy=Policy(max_consecutive_skips=2), settings=QUICK)
    for _ in range(6):
        try:
            guard.step(squares, BAD)
        except BudgetExceededError:
            continue
    assert all_finite(model, optimizer)


# -- AMP ----------------------------------------------------------------------------------------


def half_loss(factor):
    def loss_of(model, x):
        with torch.autocast("cpu", dtype=torch.float16):
            y = model(x)
        return (y.float() * factor).pow(2).mean()

    return loss_of


def with_scaler(scale, factor, count=6, **options):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, **options)
    with Guard(model, optimizer, scaler=scaler, settings=QUICK) as guard:
        outcomes = [guard.step(half_loss(factor), GOOD) for _ in range(count)]
    return guard, outcomes, scaler


def test_an_overflow_of_the_scale_is_the_scalers_own_business():
    guard, outcomes, scaler = with_scaler(2.0**24, 1.0, count=16)
    assert guard.incidents == []
    assert not outcomes[0].applied, "the scale was not high enough to overflow"
    assert outcomes[-1].applied
    assert scaler.get_scale() < 2.0**24


def test_a_scale_that_keeps_falling_is_an_incident():
    """Gradients near the limit of fp16: finite without a scale, too large with any."""
    guard, outcomes, scaler = with_scaler(2.0**40, 40.0, count=30)
    assert not any(o.applied for o in outcomes), "the scale came to rest too early for this test"
    (incident,) = guard.incidents
    assert (incident.event.kind, incident.event.symptom) == ("scale_collapse", "gradient")
    assert 8 <= incident.event.step <= 25
    assert incident.event.scale > scaler.get_scale()


def test_the_scaler_is_not_punished_for_a_nan_of_the_data():
    """Its scale and growth stay: the batch was bad, not the scale."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=3)
    with Guard(model, optimizer, scaler=scaler, settings=QUICK) as guard:
        for x in (GOOD, BAD, GOOD):
            guard.step(half_loss(1.0), x)
    assert (scaler.get_scale(), scaler._get_growth_tracker()) == (128.0, 2)
    assert len(guard.incidents) == 1


def test_epsilon_does_nothing_in_half_precision():
    eps = torch.tensor(1e-8).half()
    assert eps == 0, "the trap is gone"
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(m, x):
        with torch.autocast("cpu", dtype=torch.float16):
            p = torch.sigmoid(m(x) * 0 - 40).half()
        return -torch.log(p + eps).mean()

    guard = Guard(model, optimizer, settings=QUICK)
    assert not guard.step(loss_of, GOOD).applied
    (incident,) = guard.incidents
    assert incident.location.op == "aten.log"
    assert incident.location.source == "return -torch.log(p + eps).mean()"


# -- only a statistic or a moment is corrupted --------------------------------------------------


def test_batch_norm_statistics_can_be_the_only_thing_corrupted():
    """relu hides the Inf from the loss in evaluation of the step; the running variance keeps it."""

    class Stats(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 1)
            self.norm = nn.BatchNorm1d(2, affine=False)

        def forward(self, x):
            with torch.no_grad():
                self.norm(x)
            return self.fc(x.clamp(-10, 10))

    model = Stats()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Guard(model, optimizer, settings=QUICK) as guard:
        for x in (GOOD, GOOD, HUGE, GOOD):
            guard.step(lambda m, x: m(x).pow(2).mean(), x)
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.symptom) == (2, "buffer")
    assert incident.event.name in ("norm.running_mean", "norm.running_var")
    assert incident.event.phase == "data"
    assert all_finite(model, optimizer)


def test_a_moment_can_be_the_only_thing_corrupted():
    """Squares of 1e30 overflow exp_avg_sq to Inf; the weights do not move and stay finite."""
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    plain = linear()
    other = torch.optim.Adam(plain.parameters(), lr=0.1)
    squares(plain, GOOD).mul(1e25).backward()
    other.step()
    assert all(torch.isfinite(p).all() for p in plain.parameters())
    assert not all_finite(plain, other), "the trap is gone"
    with Guard(model, optimizer, settings=QUICK) as guard:
        for factor in (1.0, 1e25, 1.0):
            guard.step(lambda m, f: squares(m, GOOD) * f, factor)
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.symptom) == (1, "optimizer_state")
    assert incident.event.phase == "optimizer"
    assert all_finite(model, optimizer)


def test_a_learning_rate_that_is_not_a_number():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: NAN if i == 2 else 1.0)
    guard = Guard(model, optimizer, scheduler, settings=QUICK)
    outcomes = [guard.step(squares, GOOD).applied for _ in range(3)]
    assert outcomes == [True, True, False]
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.phase) == (2, "optimizer")
    assert math.isnan(incident.event.lr[0])
    assert all_finite(model, optimizer)


def test_a_learning_rate_of_numpys_that_is_not_a_number():
    """A loop that sets its rate by NumPy sets a number of NumPy's."""
    numpy = pytest.importorskip("numpy")
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, settings=QUICK)
    for rate, is_applied in ((0.1, True), (NAN, False), (0.05, True)):
        optimizer.param_groups[0]["lr"] = numpy.float32(rate)
        assert guard.step(squares, GOOD).applied is is_applied
    assert [i.event.step for i in guard.incidents] == [1]
    assert all_finite(model, optimizer)


def test_weights_that_are_bad_from_the_start_are_reported_at_the_first_step():
    model = linear()
    with torch.no_grad():
        model.bias.fill_(NAN)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), settings=QUICK)
    guard.step(squares, GOOD)
    (incident,) = guard.incidents
    assert (incident.event.step, incident.event.phase) == (0, "parameter")
    assert incident.location.chain[0].label == "parameter bias"


def test_restored_weights_that_are_bad_are_the_checkpoints_fault(tmp_path, restores_are_noted):
    gc.collect()  # guards that other tests dropped without closing hold saves back until then
    torch.save({k: v * NAN for k, v in linear().state_dict().items()}, tmp_path / "last.pt")
    model = linear()
    model.load_state_dict(torch.load(tmp_path / "last.pt"))
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), settings=QUICK)
    guard.step(squares, GOOD)
    assert guard.incidents[0].event.phase == "checkpoint"


def test_a_step_that_does_not_repeat_is_said_so_and_not_guessed():
    model = linear()
    calls = []

    def flaky(m, x):
        calls.append(1)
        return squares(m, x) * (NAN if len(calls) == 2 else 1.0)

    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), settings=QUICK)
    for _ in range(3):
        guard.step(flaky, GOOD)
    (incident,) = guard.incidents
    assert incident.event.step == 1
    assert not incident.location.is_reproduced
    assert incident.location.op is None
    assert incident.location.note == (
        "the same step, replayed twice from the same state, batch and random numbers, was finite"
    )

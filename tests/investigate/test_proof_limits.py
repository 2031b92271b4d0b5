"""What a proof must not overlook: limits that are only moved, floors that teach nothing, names that are used twice."""

import pytest
import torch
from tests.launch import forked
from torch import nn

from stayfinite import Guard
from stayfinite.investigate import changes
from stayfinite.investigate.fixes.resumed import rates_of
from stayfinite.runtime.state import TrainState


class Weight(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, x):
        return x * self.w


def growing(model, x):
    h = model(x).half()
    a = (h * h).mean()
    b = (a * 0.25).half()
    return -1e-5 * b.float()


def first_incident(model, loss_fn, batches, lr, **given):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with Guard(model, optimizer, **given) as guard:
        for batch in batches:
            guard.step(loss_fn, batch)
            if guard.incidents:
                break
    return guard.incidents[0]


def test_a_change_that_only_moves_the_limit_of_what_grows_is_refuted():
    incident = first_incident(Weight(2.0), growing, [torch.full((4,), 100.0)] * 20, lr=1.0)
    fixes = incident.diagnosis.fixes
    first = [f for f in fixes if f.status == "refuted" and "not finite (" in f.proof.note]
    assert first, [(f.status, f.remedy, f.proof) for f in fixes]
    for fix in fixes:
        if fix.status == "proved" and fix.diff:
            assert fix.proof.num_after >= 20


def saturated(model, x):
    q = 1 - torch.sigmoid(model(x))
    return -q.log_().mean()


def test_a_floor_that_leaves_a_high_loss_and_no_gradient_is_refuted():
    usual = [torch.linspace(-3, 0, 8) * k for k in (1.0, 1.1, 1.2, 1.3)]
    incident = first_incident(Weight(1.0), saturated, [*usual, torch.full((8,), 400.0)], lr=1e-2)
    floors = [f for f in incident.diagnosis.fixes if f.remedy == "floor_log"]
    assert [f.status for f in floors] == ["refuted"]
    assert "training does not lower" in floors[0].proof.note


def test_a_floor_that_one_row_of_many_meets_is_proved():
    usual = [torch.linspace(-3, 0, 64) * k for k in (1.0, 1.1, 1.2, 1.3)]
    last = usual[0].clone()
    last[5] = 400.0
    incident = first_incident(Weight(1.0), saturated, [*usual, last], lr=1e-2)
    assert incident.diagnosis.fixes[0].status == "proved"


def test_a_step_in_another_precision_stays_applied():
    model = nn.Linear(3, 2).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    state = TrainState()
    state.add_root(model)
    state.add_optimizer(optimizer)
    before = model.weight.detach().clone()
    with changes.higher_precision(state):
        assert model.weight.dtype == torch.float32
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert model.weight.dtype == torch.float16
    assert not torch.equal(model.weight, before)
    unmoved = model.weight.detach().clone()
    with changes.higher_precision(state):
        pass
    assert torch.equal(model.weight, unmoved)


def test_rates_that_a_schedule_would_give_leave_the_training_alone():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    state = {**scheduler.state_dict(), "last_epoch": 3, "_last_lr": [0.1], "_step_count": 4}
    with Guard(model, optimizer, scheduler=scheduler) as guard:
        guard.step(lambda m, x: m(x).square().mean(), torch.ones(4, 2))
        assert rates_of(scheduler, state, 3) == pytest.approx([0.1, 0.05, 0.025])
        assert guard.state.snapshot.is_taken and len(guard.state.optimizers) == 1


class PolyLR(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        left = torch.tensor(1 - self.last_epoch / 4)
        return [base * float(left**0.9) for base in self.base_lrs]


def test_a_formula_inside_a_comprehension_is_guarded():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = PolyLR(optimizer)
    with Guard(model, optimizer, scheduler=scheduler) as guard:
        for _ in range(8):
            guard.step(lambda m, x: m(x).square().mean(), torch.randn(8, 4))
            if guard.incidents:
                break
    fix = next(f for f in guard.incidents[0].diagnosis.fixes if f.status == "proved" and f.diff)
    assert fix.remedy == "guard_schedule" and "max(left, 0.0)**0.9" in fix.diff


SCRIPT = """
import torch
from torch import nn


def standardized(values):
    loss = values - values.mean()
    return loss / (values.std() + 1e-8)


torch.manual_seed(0)
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for length in [8, 8, 8, 8, 1, 8]:
    x = torch.randn(length, 3)
    gain = standardized(x.sum(1))
    for _ in range(2):
        loss = (net(x).squeeze(1) - gain).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("final", loss.item())
"""


def test_a_function_whose_names_are_the_loops_too_is_repaired_in_the_loop_around(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def command(*arguments):
        return forked(list(arguments), tmp_path)

    ran = command("-m", "stayfinite", "run", "--run-dir", "out", "train.py")
    assert "[proved]" in ran.err, ran.err
    made = command("-m", "stayfinite", "fix", "out", "--apply")
    assert made.code == 0, made.out + made.err
    assert "correction=min(1, values.numel() - 1)" in (tmp_path / "train.py").read_text()
    assert "nan" not in command("train.py").out


SCALED = """
import torch
from torch import nn


class Squashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.tanh(self.project(x))
        return self.head(h)


torch.manual_seed(0)
x = torch.randn(24, 4)
x[17] = 1e5
model = Squashed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for number, batch in enumerate(torch.utils.data.DataLoader(x, batch_size=4)):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(batch).square().mean()
    scaler.scale(loss / 2).backward()
    if number % 2:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_what_overflows_before_the_loss_is_scaled_gets_a_diff(tmp_path):
    """The scale multiplies the loss last of all; a feature beyond float16 has not seen it."""
    (tmp_path / "train.py").write_text(SCALED)
    ran = forked(["-m", "stayfinite", "run", "--run-dir", "out", "train.py"], tmp_path)
    assert "low_precision_overflow" in ran.err and "[proved]" in ran.err, ran.err

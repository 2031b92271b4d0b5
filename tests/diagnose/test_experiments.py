"""Experiments change one thing and leave no trace of it, in both forms."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stayfinite import Guard
from stayfinite.investigate import changes
from stayfinite.investigate.patched_line import PatchedLine
from stayfinite.records import Link
from stayfinite.runtime.rows import cover_rows, num_rows, take_rows
from stayfinite.runtime.state import TrainState
from stayfinite.runtime.step_changes import scaled_lr


class Net(nn.Module):
    """Batch norm, dropout, a parameter in use and a defect by name."""

    def __init__(self, defect):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(8, 1)
        self.defect = defect

    def forward(self, x):
        h = self.drop(self.norm(self.fc(x)))
        y = self.out(h).squeeze(1)
        if self.defect == "log":
            return torch.log(torch.relu(x[:, 0] - 5) + (x[:, 0] < 5)) + y
        if self.defect == "sqrt":
            return torch.sqrt(torch.where(x[:, 0] > 5, y * 0, y * y + 1)) + y
        if self.defect == "half":
            with torch.autocast("cpu", dtype=torch.float16):
                return self.out(h * x[:, :1].abs().clamp(min=1) * 2e4).squeeze(1).float() * 1e-4 + y
        return y


def loss_fn(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def data(defect):
    torch.manual_seed(0)
    x, y = torch.randn(80, 4), torch.randn(80)
    if defect in ("log", "half"):
        x[43, 0] = 5.0
    if defect == "nan":
        x[43, 2] = float("nan")
    if defect == "sqrt":
        x[43, 0] = 5.5
    return DataLoader(TensorDataset(x, y), batch_size=8)


def make(defect):
    torch.manual_seed(1)
    model = Net(defect)
    rate = 1e6 if defect == "rate" else 1e-2
    kind = torch.optim.SGD if defect == "rate" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    return model, optimizer, scheduler


def drive(form, defect, diagnose):
    random.seed(3)
    np.random.seed(3)
    model, optimizer, scheduler = make(defect)
    settings = {"diagnose": diagnose}
    with Guard(model, optimizer, scheduler=scheduler, settings=settings) as guard:
        if form == "step":
            for batch in data(defect):
                guard.step(loss_fn, batch)
        else:
            for batch in guard(data(defect)):
                optimizer.zero_grad()
                loss_fn(model, batch).backward()
                optimizer.step()
                scheduler.step()
    state = {
        **{f"model.{k}": v for k, v in model.state_dict().items()},
        **{
            f"optimizer.{i}.{k}": v
            for i, entry in optimizer.state_dict()["state"].items()
            for k, v in entry.items()
        },
        "lr": optimizer.param_groups[0]["lr"],
        "scheduler": scheduler.state_dict()["last_epoch"],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tobytes(),
    }
    return state, guard.incidents


@pytest.mark.parametrize("form", ["step", "loop"])
@pytest.mark.parametrize(
    "defect",
    [
        "log",
        "sqrt",
        "nan",
        pytest.param("half", marks=pytest.mark.slow),
        pytest.param("rate", marks=pytest.mark.slow),
    ],
)
def test_a_diagnosis_leaves_no_trace(form, defect):
    """The same run with and without experiments ends bitwise equal."""
    with_, incidents = drive(form, defect, True)
    without, plain = drive(form, defect, False)
    assert incidents and len(incidents) == len(plain)
    assert any(i.diagnosis.experiments for i in incidents)
    assert not any(i.diagnosis.experiments for i in plain)
    assert with_.keys() == without.keys()
    for key, value in with_.items():
        other = without[key]
        if isinstance(value, torch.Tensor):
            assert value.numpy().tobytes() == other.numpy().tobytes(), key
        else:
            assert value == other, key


def test_rows_and_their_indices_in_the_data_set():
    _, incidents = drive("step", "nan", True)
    d = incidents[0].diagnosis
    assert d.cause == "bad_input_data"
    assert (d.samples, d.dataset_indices) == ((3,), (43,))
    assert d.fixes and all(f.status in ("proved", "untried") for f in d.fixes)


def test_bisection_finds_the_one_row():
    _, incidents = drive("step", "log", True)
    d = incidents[0].diagnosis
    assert (d.cause, d.samples, d.dataset_indices) == ("log_of_zero", (3,), (43,))


def state_of(model, optimizer):
    state = TrainState()
    state.add_root(model, "")
    state.add_optimizer(optimizer)
    return state


def test_higher_precision_is_taken_back():
    model = nn.Linear(3, 2).half()
    before = [p.detach().clone() for p in model.parameters()]
    pointers = [p.data_ptr() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = state_of(model, optimizer)
    with changes.higher_precision(state):
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(torch.ones(1, 3).half())
            assert out.dtype == torch.float32
            assert torch.zeros(2, dtype=torch.float16).dtype == torch.float32
        assert torch.ones(1).half().dtype == torch.float32
    assert [p.data_ptr() for p in model.parameters()] == pointers
    for p, old in zip(model.parameters(), before):
        assert p.dtype == torch.float16 and torch.equal(p, old)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_settings_and_state_of_the_optimizer_are_taken_back():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, eps=0.0)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = state_of(model, optimizer)
    entries = dict(optimizer.state)
    used = []
    hook = optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["eps"]))
    with changes.fresh_optimizer(state), changes.with_setting("eps", 1e-3):
        assert not optimizer.state
        optimizer.param_groups[0]["eps"] = 0.0  # a loop sets it in every iteration
        optimizer.step()
    hook.remove()
    assert used == [1e-3]
    assert dict(optimizer.state) == entries and optimizer.param_groups[0]["eps"] == 0.0
    seen = []
    handle = optimizer.register_step_post_hook(lambda o, *_: None)
    with scaled_lr(0.1):
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        optimizer.step()
    handle.remove()
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.step()
    assert seen[-1] == 0.5


def test_filling_is_taken_back_bit_for_bit():
    t = torch.tensor([1.0, float("nan"), float("inf"), -0.0])
    before = t.numpy().tobytes()
    with changes.filled([t]):
        assert t.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert t.numpy().tobytes() == before


def test_only_the_one_line_is_patched():
    x = torch.zeros(2, requires_grad=True)
    bad = torch.log(x)  # not this line
    patch = PatchedLine(Link(op="aten.log", role="birth", file=__file__, line=_line_below()))
    with patch:
        good = torch.log(x)
        other = torch.log(x)
        good.sum().backward()
    assert torch.isinf(bad).all() and torch.isinf(other).all()
    assert torch.isfinite(good).all() and torch.isfinite(x.grad).all()
    assert patch.num_changed


def _line_below():
    """The line with `good = ` in this file."""
    with open(__file__, encoding="utf-8") as f:
        return next(i for i, text in enumerate(f, 1) if text.strip().startswith("good = "))


def test_rows_of_nested_batches():
    batch = {"x": torch.arange(8).reshape(4, 2), "y": [torch.arange(4)], "n": 3}
    assert num_rows(batch) == 4
    cut = take_rows(batch, [1, 3], 4)
    assert (
        cut["x"].tolist() == [[2, 3], [6, 7]] and cut["y"][0].tolist() == [1, 3] and cut["n"] == 3
    )
    covered = cover_rows(batch, (0,), 4)
    assert covered["y"][0].tolist() == [1, 1, 2, 3]
    assert num_rows(torch.zeros(())) is None


def test_several_lines_that_fail_are_all_named_and_tried_together():
    def loss(model, x):
        y = model(x)
        a = torch.sqrt(y * 0)  # first
        b = (y * 0).pow(0.5)  # second
        return (y + a + b).mean()

    model = nn.Linear(2, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    diagnosis = guard.step(loss, torch.ones(3, 2)).incident.diagnosis
    (tried,) = [e for e in diagnosis.experiments if e.name == "patched_operator"]
    assert tried.outcome == "finite" and "Backward0 at test_experiments.py:" in tried.changed
    first = diagnosis.fixes[0]
    assert first.status == "proved" and set(first.remedy.split("+")) == {
        "floor_root",
        "floor_power",
    }
    changed = [line for line in first.diff.splitlines() if line[0] == "+" and line[:3] != "+++"]
    assert len(changed) == 2
    assert not any(f.title.startswith("and repair ") for f in diagnosis.fixes)  # the diff does


def test_a_batch_that_made_the_weights_run_away_some_steps_before_is_named():
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    y = x.sum(1)
    y[21] = -4.7e13
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with Guard(model, optimizer) as guard:
        for xb, yb in guard(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xb).squeeze(1), yb).backward()
            optimizer.step()
    first = guard.incidents[0]
    assert first.event.step == 6 and first.diagnosis.cause == "bad_input_data"
    assert "row 1 of batch[1] in step 5 (sample 21 of the data set)" in first.diagnosis.summary
    fix = first.diagnosis.fixes[-1]
    assert (fix.experiment, fix.status) == ("without_outlier", "untried")


def test_a_rate_that_is_too_high_is_no_outlier_s_fault():
    torch.manual_seed(0)
    x = torch.randn(80, 4)
    x[9] *= 30  # an outlier, but an ordinary one
    loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=4)
    model = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    with Guard(model, optimizer) as guard:
        for xb, yb in guard(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xb).squeeze(1), yb).backward()
            optimizer.step()
    assert guard.incidents[0].diagnosis.cause == "lr_divergence"

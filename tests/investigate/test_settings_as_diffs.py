"""A setting that is to blame gets a diff of the place where it is made, and the diff was run."""

import json
import textwrap
from types import SimpleNamespace

import pytest
import torch
from tests.launch import forked
from torch import nn

from stayfinite import Guard
from stayfinite.investigate.fixes import rate_change
from stayfinite.patches import provenance
from stayfinite.records import Culprit, Fix
from stayfinite.remedies import Source, apply_patch, read_patch, unified_diff


@pytest.fixture(autouse=True)
def notes():
    """As in a process that has just imported `Guard`, whatever ran before."""
    provenance.install()
    yield
    provenance.remove()


def proved(guard):
    fixes = guard.incidents[0].diagnosis.fixes
    return next(f for f in fixes if f.status == "proved" and f.diff)


def changed_lines(fix):
    return [x for x in fix.diff.splitlines() if x[:1] in "+-" and x[:3] not in ("+++", "---")]


def square(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def batches(number=30):
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(number, 8, 4, generator=generator))


def trained(model, optimizer, loss_fn=square, data=None, **given):
    with Guard(model, optimizer, **given) as guard:
        for batch in data if data is not None else batches():
            guard.step(loss_fn, batch)
            if guard.incidents:
                break
    return guard


RATES = {"rate_under_test": 5.0}


def make_optimizer(model, rate):
    return torch.optim.SGD(model.parameters(), rate)


def test_a_rate_is_changed_where_its_number_is_written():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    fix = proved(trained(model, make_optimizer(model, RATES["rate_under_test"])))
    removed, added = changed_lines(fix)
    assert removed == '-RATES = {"rate_under_test": 5.0}' and "rate_under_test" in added
    assert fix.proof.note == "from the last healthy state on" and fix.proof.num_after >= 3


def test_a_schedule_that_rises_for_ever_gets_an_upper_limit():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def warmup(step):
        return float(2**step)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    fix = proved(trained(model, optimizer, scheduler=scheduler))
    assert fix.remedy == "cap_schedule" and "+        return min(float(2**step), " in fix.diff


def test_a_formula_that_divides_by_nothing_is_guarded():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def decay(step):
        left = torch.tensor(4.0) - step
        return float(1 / left)  # infinite in the fifth step

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    fix = proved(trained(model, optimizer, scheduler=scheduler))
    assert fix.remedy == "guard_schedule" and "max(left, 1)" in fix.diff


class Weighted(nn.Module):
    def __init__(self, counts):
        super().__init__()
        self.register_buffer("weights", torch.log(10 / counts))
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(x * self.weights)


def test_a_buffer_that_is_infinite_from_the_start_is_filled_where_it_is_computed():
    torch.manual_seed(0)
    model = Weighted(torch.tensor([1.0, 2.0, 0.0, 4.0]))
    data = [b * torch.tensor([1.0, 1.0, 0.0, 1.0]) for b in batches(4)]
    guard = trained(model, torch.optim.SGD(model.parameters(), lr=0.01), data=data)
    fix = proved(guard)
    assert fix.remedy == "fill_initial"
    assert "torch.log(10 / counts).nan_to_num(0.0, 0.0, 0.0)" in fix.diff
    assert torch.isinf(model.weights).any()  # the training itself is as it was


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)
        with torch.no_grad():
            self.step.weight.copy_(9 * torch.eye(4))

    def forward(self, x):
        for _ in range(60):
            x = torch.sin(self.step(x))
        return x.mean(1, keepdim=True)


def test_a_gradient_that_explodes_is_limited_on_its_way():
    torch.manual_seed(0)
    model = Deep()
    fix = proved(trained(model, torch.optim.SGD(model.parameters(), lr=1e-3)))
    assert fix.remedy.startswith("limit_gradient") and "register_hook" in fix.diff


def test_a_shift_that_may_change_the_result_is_not_proved_without_a_healthy_step():
    def loss(model, x):
        return torch.exp(model(x)).mean()

    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight)
    guard = trained(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), loss, [1e4 * torch.ones(2, 4)]
    )
    fixes = guard.incidents[0].diagnosis.fixes
    assert not any((f.remedy or "").startswith("shift_exp") and f.status == "proved" for f in fixes)


def test_what_was_proved_is_run_again_on_the_same_failure_and_not_searched_again():
    def loss(model, x):
        return torch.log(model(x).relu() * 0 + x.abs().mean()).mean() + model(x).mean()

    model = nn.Linear(4, 1)
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3)) as guard:
        for batch in [*batches(3), *[torch.zeros(8, 4)] * 4]:
            guard.step(loss, batch)
    full = [i for i in guard.incidents if i.same_as is None]
    assert len(full) == 2
    first, again = (i.diagnosis.fixes[0] for i in full)
    assert (first.status, again.status) == ("proved", "proved") and first.diff == again.diff
    assert "the other steps were run for step 3" in again.proof.note


RESUME = """
    import torch
    from torch import nn

    def build():
        model = nn.Linear(4, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def first_run(path):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.5)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    torch.manual_seed(0)
    first_run("last.pt")
    saved = torch.load("last.pt")
    model, optimizer = build()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader = torch.utils.data.DataLoader(torch.randn(240, 4), batch_size=8)
    for x in loader:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""

CONFIG = """
    import json
    import torch
    from torch import nn

    config = json.load(open("config.json"))
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["optim"]["lr"])
    loader = torch.utils.data.DataLoader(torch.randn(240, 4), batch_size=8)
    for x in loader:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    print("final", loss.item())
"""


@pytest.mark.parametrize(
    ("script", "remedy", "file"),
    [
        (RESUME, "set_rate_again", "train.py"),
        (CONFIG, "set_lr", "config.json"),
    ],
)
def test_a_script_trains_with_the_diff_of_its_setting(script, remedy, file, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(script).lstrip())
    (tmp_path / "config.json").write_text('{\n  "optim": {"lr": 4.0}\n}\n')
    forked(["-m", "stayfinite", "run", "--run-dir", "run", "train.py"], tmp_path)
    (first, *_) = sorted((tmp_path / "run" / "incidents").glob("*/incident.json"))
    fixes = json.loads(first.read_text())["diagnosis"]["fixes"]
    (fix,) = [f for f in fixes if f["status"] == "proved" and f["diff"]]
    assert fix["remedy"] == remedy and fix["diff"].startswith(f"--- a/{file}")
    target = tmp_path / file
    target.write_text(apply_patch(target.read_text(), read_patch(fix["diff"])))
    done = forked(["train.py"], tmp_path)
    assert done.code == 0, done.err
    assert float(done.out.split()[-1]) < 4.0


@pytest.mark.parametrize(
    ("written", "given", "expected"),
    [
        ("self.rates", [0.1, 0.2], "[0.5 * rate for rate in self.rates]"),
        ("self.rate", [0.1], "(self.rate) * 0.5"),
        ("[a, b]", [0.1, 0.1], "[0.5 * rate for rate in [a, b]]"),
        ("10 * rate", [0.1, 0.1], "(10 * rate) * 0.5"),
        (
            "self.rates",
            [0.1, 0.1],
            None,
        ),  # one number for both groups, or a list of two that are equal
    ],
)
def test_a_peak_for_each_group_stays_a_list(monkeypatch, written, given, expected):
    source = Source(f"s = OneCycleLR(o, max_lr={written}, total_steps=9)\n")
    monkeypatch.setattr(rate_change, "source_of", lambda file: source)
    place = Culprit(file="train.py", line=1, source="", what="OneCycleLR is made")
    optimizer = SimpleNamespace(param_groups=[{"max_lr": rate} for rate in given])
    made = rate_change._lower_peak(Fix(title="t", why="w"), place, 0.5, optimizer)
    assert (made.diff if made is not None else None) == (
        None if expected is None else unified_diff(
            "train.py", source.text, source.text.replace(written, expected)
        )
    )  # fmt: skip

"""Scripts that nobody changed, under `stayfinite run`: plans, parts, weights that nobody trains."""

import json
import re

import pytest

from stayfinite.config import PARTS


@pytest.fixture
def run(nursery, tmp_path):
    """`stayfinite run OPTIONS train.py` of this text."""

    def run(text, *options):
        (tmp_path / "train.py").write_text(text)
        command = ["-m", "stayfinite", "run", "--run-dir", "r", *options, "train.py"]
        return nursery.run(command, tmp_path)

    return run


@pytest.fixture
def plain(nursery, tmp_path):
    def plain(text):
        (tmp_path / "plain.py").write_text(text)
        return nursery.run(["plain.py"], tmp_path)

    return plain


PLAN = """
stages:
  - name: validate
    steps: 5
    metric: val acc
    metric_above: 0.5
  - name: scale up
    steps: 5
    changes: {lr: 1.5x, weight_decay: 1e-4, batch_size: 48}
"""
PRINTS = """
import torch
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in DataLoader(torch.ones(16, 2), batch_size=4):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"val acc {ACC}")
print("rate", optimizer.param_groups[0]["lr"])
"""


@pytest.mark.parametrize("acc", [0.8, 0.2])
def test_a_script_follows_a_plan_from_a_file(run, tmp_path, acc):
    (tmp_path / "plan.yaml").write_text(PLAN)  # the first epoch's figure comes after step 4
    done = run(PRINTS.replace("{ACC}", str(acc)), "--plan", "plan.yaml")
    if acc > 0.5:
        assert done.code == 0, done.err
        assert "rate 0.15" in done.out
        assert json.loads((tmp_path / "r" / "plan.json").read_text())["plan"]["steps"] == 3
    else:
        assert done.code == 1 and "Traceback" not in done.err
        assert "stage 'validate' of the plan has failed after 5 steps: val acc is 0.2" in done.err


def test_reading_what_is_printed_has_a_switch_that_run_accepts(run, tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    shown = run(PRINTS.replace("{ACC}", "0.9"), "--plan", "plan.yaml", "--show-patches").err
    rows = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines() if line[:2] == "  "]
    switches = {name for row in rows for name in row[1].split(", ")}
    assert "plan" in switches and switches <= set(PARTS), switches
    done = run(PRINTS.replace("{ACC}", "0.9"), "--plan", "plan.yaml", "--without", "plan")
    said = " ".join(done.err.replace("│", " ").split())
    assert (
        done.code == 2 and "the plan asks for val acc, which is read from what the script" in said
    )


HEADS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))
optimizer = torch.optim.AdamW(heads.parameters(), lr=0.01)
calls = 0
for step, x in enumerate(DataLoader(torch.randn(40, 4), batch_size=8)):
    p = torch.stack([h(x) for h in heads]).softmax(-1)
    cold = torch.ones(3, 1, 1)
    cold[1] = 0.0 if step == 2 else 1.0
    losses = ((p * cold) ** 0.6).sum(-1).mean(-1)
    optimizer.zero_grad()
    losses.sum().backward()
    optimizer.step()
    calls += 1
print(calls, sum(float(p.sum()) for p in heads[0].parameters()), bool(heads[1].weight.isfinite().all()))
"""


def test_a_loop_goes_on_with_its_good_heads(run, plain):
    done = run(HEADS, "--policy", "parts")
    assert done.code == 0, done.err
    assert "the step was made without the gradient of part 1 of 3 (1)" in done.err
    calls, first, is_finite = done.out.split()
    assert (calls, is_finite) == ("5", "True")
    # The other heads learn as if nothing had happened: the same script with a head that is never dead.
    well = plain(HEADS.replace("step == 2", "step == 99"))
    assert float(first) == pytest.approx(float(well.out.split()[1]), rel=1e-6)


WEIGHTS = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = (torch.rand(4) > -1).float()
        self.position = torch.sin(torch.arange(4.0)) + 2
        self.shown = torch.randn(2, 4)
        self.embedding = WEIGHT
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        noise = self.noise = torch.randn(4)
        return self.fc(x * EMBEDDING * self.mask * self.position + 0 * noise)

    def show(self):
        return self.fc(self.shown)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in DataLoader(torch.ones(64, 4), batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("weight", "used", "is_reported"),
    [
        (
            "torch.rand(4, requires_grad=True)",
            "self.embedding",
            "a plain tensor that gets a gradient",
        ),
        ("torch.rand(4)", "self.embedding", "a plain tensor of random numbers"),
        ("nn.init.uniform_(torch.empty(4))", "self.embedding", "a plain tensor of random numbers"),
        ("[torch.randn(4) * 0.1]", "self.embedding[0]", "a plain tensor of random numbers"),
        (
            "[nn.Parameter(torch.randn(4))]",
            "self.embedding[0]",
            "a plain tensor that gets a gradient",
        ),
        ("nn.Parameter(torch.rand(4))", "self.embedding", ""),
        ("torch.tensor([1.0, 2.0, 0.5, 1.0])", "self.embedding", ""),
    ],
)
def test_a_weight_that_nobody_trains_is_reported_and_a_constant_is_not(
    run, weight, used, is_reported
):
    """Beside it a mask, a table of positions, noise drawn in each step, and samples that are only shown."""
    done = run(WEIGHTS.replace("WEIGHT", weight).replace("EMBEDDING", used))
    assert done.code == 0, done.err
    reported = [line for line in done.err.splitlines() if "plain tensor" in line]
    assert [is_reported in line and "warning: embedding" in line for line in reported] == [
        True
    ] * bool(is_reported)


VARIABLES = """
import torch
from torch import nn
from torch.utils.data import DataLoader
table = torch.randn(4, 4, requires_grad=True)
points = torch.rand(4, 4, requires_grad=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in DataLoader(torch.ones(64, 4), batch_size=4):
        optimizer.zero_grad()
        (model(x @ table).square().mean() + model(points).mean()).backward()
        optimizer.step()
"""


def test_a_variable_used_as_a_weight_is_reported_and_a_point_with_a_gradient_is_not(run):
    done = run(VARIABLES)
    reported = [line for line in done.err.splitlines() if "plain tensor" in line]
    assert (
        len(reported) == 1 and "warning: table: a plain tensor that gets a gradient" in reported[0]
    )


NORM = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.ones(12, 2)
data[6, 0] = 1e38
for step, x in enumerate(DataLoader(data, batch_size=2)):
    optimizer.zero_grad()
    # In step 3 the gradient of the first weight is 1e38 * 1e38: infinite.
    ((model.weight * x.max()).sum() * x.max()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isnan(norm):
        continue
    optimizer.step()
print("weights finite:", bool(model.weight.isfinite().all()))
"""


def test_what_isnan_of_the_norm_lets_pass_is_caught(run, plain):
    assert "weights finite: False" in plain(NORM).out
    done = run(NORM)
    assert "weights finite: True" in done.out, done.err
    assert "step 3" in done.err

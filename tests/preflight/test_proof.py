"""`check --prove`: by line, with the box, in JSON and from Python."""

import json
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from stayfinite.cli.app import app
from stayfinite.preflight import check

pytestmark = pytest.mark.usefixtures("shared_forks")
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, mask = torch.randn(60, 4), torch.rand(60, 4) > 0.5
model = nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, mask in DataLoader(TensorDataset(x, mask), batch_size=6):
    loss = (model(x).square() * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SAFE = SCRIPT.replace("mask.sum()\n", "mask.sum().clamp(min=1)\n")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "safe.py").write_text(textwrap.dedent(SAFE))
    return lambda *args: CliRunner().invoke(app, ["check", *args])


def test_a_script_line_that_can_fail_is_reported_with_condition_and_box(run):
    out = run("--only", "proof", "train.py")
    assert out.exit_code == 0, out.output
    text = out.stdout
    assert (
        "  warn  can-fail  train.py:11: aten.div when the sum of batch[1] is 0, in [0, 24]" in text
    )
    assert "do: keep the denominator away from 0" in text
    assert (
        "batch[1] in [0, 1]; weights as they are ± up to 0.1 (about 100 steps at this rate); rows of a batch: 6"
        in text
    )
    assert "proved safe for all inputs in the box: forward " in text


def test_the_mended_script_is_proved_and_json_carries_every_line(run):
    out = run("--only", "proof", "--json", "safe.py")
    found = json.loads(out.stdout)["findings"]
    assert {f["check"] for f in found} == {"proof/box", "proof/safe"}
    lines = next(f for f in found if f["check"] == "proof/safe")["data"]["lines"]
    assert {x["line"] for x in lines} == {11, 14}
    assert all(x["status"] == "safe" for x in lines)


def test_a_box_of_ones_own(run, tmp_path):
    (tmp_path / "box.json").write_text('{"data": {"batch[1]": [1, 1]}}')
    out = run("train.py", "--only", "proof", "--box", "box.json")
    assert "can-fail" not in out.stdout
    assert "batch[1] in [1, 1]" in out.stdout
    out = run("train.py", "--only", "proof", "--box", "none.json")
    assert out.exit_code == 2
    assert "`--box` must be a file, got 'none.json'" in out.output


def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.rand(13, 4), torch.randint(2, (13,))), batch_size=6)

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(
            model(batch[0]).var(0, keepdim=True) + model(batch[0]), batch[1]
        )

    return model, loss_fn, loader, torch.optim.SGD(model.parameters(), lr=0.1)


def test_from_python_with_the_size_of_the_last_batch():
    report = check(build, only=["config"], prove=True)
    (found,) = (f for f in report.of_group("proof") if f.status == "warn")
    assert found.value.startswith("aten.var when the batch has 1 row(s)")
    assert found.data["cause"] == "empty_reduction"
    assert found.data["file"] == __file__
    assert {f.group for f in report.findings} == {"config", "proof"}


def test_without_being_asked_nothing_is_proved():
    assert not check(build, only=["config"]).of_group("proof")


def test_the_training_is_afterwards_what_it_was():
    parts = build()
    before = [p.detach().clone() for p in parts[0].parameters()]
    check(parts, only=["proof"])
    assert all(torch.equal(a, b) for a, b in zip(before, parts[0].parameters()))
    assert all(p.grad is None for p in parts[0].parameters())

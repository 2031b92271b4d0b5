"""An incident on disk fails again in a new process, and its file runs no code."""

import json
import shutil
import textwrap

import pytest
import torch
import typer
from tests.launch import forked
from typer.testing import CliRunner

from stayfinite.cli import replay

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from stayfinite import Guard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.drop(torch.tanh(self.fc(x)))).squeeze(1)

def loss_fn(model, batch):
    x, weight = batch
    return (model(x).square() / weight).mean()

def build():
    torch.manual_seed(0)
    model = Net()
    return model, loss_fn, torch.optim.Adam(model.parameters(), lr=1e-2)

if __name__ == "__main__":
    model, loss_fn, optimizer = build()
    x, weight = torch.randn(40, 3), torch.ones(40)
    weight[25] = 0
    with Guard(model, optimizer, run_dir="run") as guard:
        for batch in DataLoader(TensorDataset(x, weight), batch_size=8):
            guard.step(loss_fn, batch)
"""


@pytest.fixture(scope="module")
def broken_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    done = forked(["train.py"], folder)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def incident(broken_run, tmp_path, monkeypatch):
    shutil.copytree(broken_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (found,) = (tmp_path / "run" / "incidents").iterdir()
    return found


@pytest.fixture
def app():
    app = typer.Typer()
    app.callback()(lambda: None)
    replay.register(app)
    return app


def test_it_fails_again_at_the_same_line(incident, app):
    result = CliRunner().invoke(app, ["replay", str(incident), "--build", "train.py:build"])
    assert result.exit_code == 1, result.output
    assert result.output.startswith("the step fails again, at the same operator and line")
    assert "why    zero_denominator" in result.output
    assert "rows of the batch that are enough to fail: 1" in result.output


def test_json_is_an_incident(incident, app):
    args = ["replay", str(incident / "incident.json"), "--build", "train.py:build", "--json"]
    result = CliRunner().invoke(app, args)
    assert json.loads(result.output)["event"]["step"] == 3


def test_the_capsule_is_plain_data(incident):
    capsule = torch.load(incident / "capsule.pt", weights_only=True)
    assert capsule["step"] == 3 and capsule["batches"][0][1][1] == 0


def test_wrong_usage_says_what_to_do(incident, app, tmp_path):
    for args, message in [
        ([str(incident)], "--build MODULE:FUNCTION"),
        ([str(incident)], "nothing of that was run"),
        ([str(incident), str(incident), "--", "train.py"], "one incident at a time"),
        ([str(tmp_path)], "is no incident"),
        ([str(incident), "--build", "train"], "takes MODULE:FUNCTION"),
        ([str(incident), "--build", "train.py:nothing"], "has no function 'nothing'"),
        ([str(incident), "--build", "train.py:Net"], "must return (model, loss_fn, optimizer)"),
    ]:
        result = CliRunner().invoke(app, ["replay", *args])
        assert result.exit_code == 2
        assert message in result.output


def test_a_repaired_source_is_finite(incident, app, tmp_path):
    text = (tmp_path / "train.py").read_text()
    (tmp_path / "fixed.py").write_text(text.replace("/ weight)", "/ weight.clamp(min=1))"))
    result = CliRunner().invoke(app, ["replay", str(incident), "--build", "fixed.py:build"])
    assert result.exit_code == 0, result.output
    assert "finite now" in result.output


LOOP = SCRIPT.replace(
    """    with Guard(model, optimizer, run_dir="run") as guard:
        for batch in DataLoader(TensorDataset(x, weight), batch_size=8):
            guard.step(loss_fn, batch)
""",
    """    for batch in DataLoader(TensorDataset(x, weight), batch_size=int(sys.argv[1])):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
""",
)


@pytest.mark.slow
def test_a_script_is_replayed_by_itself(tmp_path):
    (tmp_path / "loop.py").write_text(textwrap.dedent(LOOP))

    def stayfinite(*args):
        return forked(["-m", "stayfinite", *args], tmp_path)

    first = stayfinite("run", "--run-dir", "run", "loop.py", "8")
    assert first.code == 0, first.err
    (found,) = (tmp_path / "run" / "incidents").iterdir()
    reported = stayfinite("replay", str(found))
    assert reported.code == 2 and "says that this was run: " in reported.err
    assert "loop.py 8" in reported.err and reported.out == ""
    again = stayfinite("replay", str(found), "--", "loop.py", "8")
    assert again.code == 1, again.err
    assert "the step fails again, at the same operator and line" in again.out
    assert "zero_denominator" in again.out
    assert f"saved: {found.relative_to(tmp_path)}" in again.out
    assert again.err == "", "said once, and of no folder that is gone by now"

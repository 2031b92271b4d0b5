"""A bad tensor that the script itself holds is named by its variable, and what is handed on to the next iteration is not."""

import dataclasses
import json
import sys
import textwrap

import pytest
import torch
from tests.launch import forked

from stayfinite.investigate.body.held import HeldData
from stayfinite.investigate.body.scene import scenes_of_frame

BAD = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])


@dataclasses.dataclass
class Sample:
    x: torch.Tensor


def named(tensor, frame):
    found = HeldData(scenes_of_frame(frame)[:1]).find(tensor)
    return f"{found.kind} {found.name}" if found is not None else None


def test_what_an_iteration_draws_is_data_and_what_it_hands_on_is_not():
    state = BAD + 1
    for _ in range(1):
        old = state
        drawn, record = BAD.clone(), Sample(BAD * 2)
        state = old + 0
        total = 0
        total += drawn
    frame = sys._getframe()
    assert named(drawn, frame) == "batch drawn"
    assert named(record.x[:, 1], frame) == "batch record.x"  # a view of it
    assert named(BAD * 2, frame) == "batch record.x"  # the same values, drawn once more
    assert named(state * 5, frame) is None and named(torch.full((2, 2), torch.nan), frame) is None
    assert named(state, frame) == "variable state"


BUFFER = """
    data = buffer.sample(step)
    loss = (model(data.x) - data.y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CLOSURE = """
    def closure():
        optimizer.zero_grad()
        loss = sum((model(x) - 1).square().mean() for x in rows.split(4))
        loss.backward()
        return loss
    optimizer.step(closure)
"""
FUNCTION = """
    train(step)
"""


@pytest.mark.parametrize(
    ("body", "name"),
    [(BUFFER, "data.x"), (CLOSURE, "rows"), (FUNCTION, "features")],
    ids=["drawn", "closure", "function"],
)
def test_the_variable_that_was_bad_is_named(body, name, tmp_path):
    script = f"""
import collections
import numpy as np
import torch

torch.manual_seed(0)
np.random.seed(0)
table = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
table[9, 1] = np.inf
rows, features = torch.tensor(table), torch.tensor(table)
Drawn = collections.namedtuple("Drawn", "x y")


class Buffer:
    def sample(self, step):
        i = np.random.permutation(16)[:12]
        return Drawn(torch.tensor(table[i]), torch.ones(12, 1))


def train(step):
    optimizer.zero_grad()
    model(features).square().mean().backward()
    optimizer.step()


buffer = Buffer()
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.{"LBFGS" if "closure" in body else "SGD"}(model.parameters(), lr=0.01)
for step in range(2):{textwrap.indent(textwrap.dedent(body), "    ")}
"""
    (tmp_path / "train.py").write_text(script)
    causes = [] if body is BUFFER else ["--no-diagnose"]
    done = forked(["-m", "stayfinite", "run", "--run-dir", "run", *causes, "train.py"], tmp_path)
    (first, *_) = sorted((tmp_path / "run" / "incidents").glob("*/incident.json"))
    incident = json.loads(first.read_text())
    assert incident["event"]["phase"] == "data"
    assert incident["location"]["chain"][0]["label"] == f"batch {name}"
    if body is BUFFER:
        assert incident["diagnosis"]["cause"] == "bad_input_data"
        assert f"the script's own {name} holds" in " ".join(done.err.split())

"""A weight that nobody trains is told of once, with the first deep check."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = torch.rand(4)
        self.embedding = WEIGHT
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return self.fc(x * self.embedding * self.mask)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in DataLoader(torch.ones(64, 4), batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("weight", "is_told"),
    [
        ("torch.rand(4, requires_grad=True)", True),
        ("nn.Parameter(torch.rand(4))", False),
        ("torch.rand(4)", False),  # a constant
    ],
)
def test_it_is_told_under_run_and_a_parameter_is_not(tmp_path, weight, is_told):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT).replace("WEIGHT", weight))
    command = [sys.executable, "-m", "stayfinite", "run", "--run-dir", "r", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("embedding: a plain tensor that gets a gradient") == is_told
    assert "mask" not in done.stderr

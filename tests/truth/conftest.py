"""Small scripts under `stayfinite run`; what is said of them is read from the run folder."""

import json
import textwrap
from dataclasses import dataclass

import pytest
from tests.launch import Done

from stayfinite import Incident

HEAD = """
import math, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
"""


@dataclass(frozen=True)
class Watched:
    done: Done
    incidents: list[Incident]
    text: str
    """The script."""

    @property
    def first(self) -> Incident:
        return self.incidents[0]

    def line(self, mark: str) -> int:
        (number,) = [i for i, t in enumerate(self.text.splitlines(), 1) if t.endswith(mark)]
        return number


@pytest.fixture
def watch(nursery, tmp_path):
    """`watch(script)` runs it under `stayfinite run`."""

    def run(body: str, *options: str) -> Watched:
        text = HEAD.lstrip() + textwrap.dedent(body)
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        folder = tmp_path / "run"
        command = ["-m", "stayfinite", "run", "--run-dir", str(folder), *options, "train.py"]
        done = nursery.run(command, tmp_path)
        files = sorted((folder / "incidents").glob("*/incident.json"))
        found = [Incident.from_json(f.read_text(encoding="utf-8")) for f in files]
        journal = folder / "journal.jsonl"
        assert not journal.exists() or json.loads(journal.read_text().splitlines()[0])
        return Watched(done, sorted(found, key=lambda i: i.event.step), text)

    return run

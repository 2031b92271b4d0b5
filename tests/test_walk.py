"""How many modules a failing step goes through: as the docs list them, and no more than today."""

import json
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
DOC = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
SCRIPT = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = torch.randn(64, 4)
rows[40] = -50
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
for (batch,) in DataLoader(TensorDataset(rows), batch_size=8):
    optimizer.zero_grad()
    loss = (batch.mean(1) + 5).log().mean() + model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))

    def walked(*form):
        out = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "walk.py"), *form],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert out.returncode == 0, out.stderr
        return json.loads(out.stdout.splitlines()[-1])

    return {"guard.step": walked("step"), "stayfinite run": walked("run", "train.py")}


def listed(form):
    """The files of the numbered list under the form's heading."""
    part = DOC.partition(f"### `{form}`")[2].partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/.]+)`", part, re.MULTILINE)


def as_file(module):
    name = module.removeprefix("stayfinite.").replace(".", "/")
    is_room = (ROOT / "src" / "stayfinite" / name).is_dir()
    return f"{name}/" if is_room else f"{name}.py"


@pytest.mark.parametrize(
    ("form", "most", "most_that_ran"), [("guard.step", 20, 118), ("stayfinite run", 22, 149)]
)
def test_the_walk_of_a_failing_step_is_the_one_in_the_docs_and_does_not_grow(
    form, most, most_that_ran, walks
):
    walk = [as_file(m) for m in walks[form]["walk"]]
    assert listed(form) == walk, "the docs list another walk; now it is\n" + "\n".join(walk)
    assert len(walk) <= most
    assert len(walks[form]["ran"]) <= most_that_ran


def test_the_walk_begins_at_the_driver_and_ends_in_the_journal(walks):
    assert walks["guard.step"]["walk"][0] == "stayfinite.runtime.step.driver"
    assert walks["stayfinite run"]["walk"][0] == "stayfinite.runtime.loop.bad_steps"
    for walk in walks.values():
        assert walk["walk"][-1] == "stayfinite.report.journal"

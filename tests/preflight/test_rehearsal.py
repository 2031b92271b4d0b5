"""The whole training in short: what follows the epochs goes its whole way before the long run does."""

import os
import subprocess
import sys
import textwrap

import pytest

from stayfinite.preflight.capture.rehearsal import by_measurement, rehearse
from stayfinite.preflight.records import failed, passed, warned

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
model = nn.Linear(2, 1)
loader = DataLoader(torch.ones(400, 2), batch_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4 * len(loader))
for epoch in range(4):
    for x in loader:
        optimizer.zero_grad()
        score = model(x).sigmoid()
        loss = LOSS
        loss.mean().backward()
        optimizer.step()
        schedule.step()
    torch.save(model.state_dict(), "last.pt")
print(schedule.last_epoch, len(loader))
import socket, subprocess
for reach in (lambda: socket.create_connection(("127.0.0.1", 9)), lambda: subprocess.run(["true"])):
    try:
        reach()
        print("reached")
    except RuntimeError as e:
        print(e)
"""
BROKEN = SCRIPT.replace("LOSS", "score - (50.0 * epoch + score).exp().log()")
HEALTHY = SCRIPT.replace("LOSS", "score - (50.0 * epoch + score).tanh()")


@pytest.fixture
def rehearsed(tmp_path, monkeypatch):
    """The findings for a script, and what it printed."""
    monkeypatch.chdir(tmp_path)
    started = []

    def start(module, output):
        command = [
            sys.executable,
            "-m",
            f"stayfinite.preflight.capture.{module}",
            str(tmp_path / "work"),
        ]
        with open(output, "wb") as f:
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=f, stderr=f, env=env)
        started.append(process)
        return process

    def stop(process):
        process.kill()
        process.wait()

    def run(text, found=()):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        folder = tmp_path / "work"
        folder.mkdir()
        job = {
            "name": str(tmp_path / "train.py"), "args": [], "is_module": False, "seed": 0,
            "budget_s": None, "saved_as": "kept",
        }  # fmt: skip
        findings = rehearse(job, folder, found, start, stop)
        said = folder / "rehearsal.txt"
        return findings, said.read_text() if said.exists() else ""

    return run


@pytest.mark.slow
def test_what_a_later_epoch_breaks_fails_at_its_line(rehearsed, tmp_path):
    (found,), _ = rehearsed(BROKEN)
    assert (found.status, found.check, found.cause) == (
        "fail",
        "stability/rehearsal",
        "exp_overflow",
    )
    assert found.subject == "train.py:14" and found.location.op == "aten.exp"
    # The third epoch of 8 batches.
    assert "step 16: the loss is -inf, born in aten.exp" in found.value
    assert (tmp_path / "work/predicted/incidents").is_dir() and found.data["saved"].startswith(
        "kept"
    )


@pytest.mark.slow
def test_its_healthy_twin_goes_to_its_end_with_a_shortened_schedule(rehearsed, tmp_path):
    (found,), said = rehearsed(HEALTHY)
    assert found.status == "pass"
    assert said.splitlines() == [
        "32 8", "refused in a rehearsal: a connection", "refused in a rehearsal: another program",
    ]  # fmt: skip
    assert found.value.startswith("the whole training in short, 32 steps")
    assert not (tmp_path / "last.pt").exists()  # its files are held back


def test_a_rate_that_is_only_unusual_is_judged_by_what_was_measured():
    rate = warned("config", "config/lr", "0.1 (expected at most 0.01)", "start at 1e-3 or below")
    for data, status in (
        ({"is_whole": True, "is_falling": True}, "pass"),
        ({"is_whole": True, "is_falling": False}, "warn"),
        ({"is_whole": False, "is_falling": True}, "warn"),
    ):
        ran = passed("stability", "stability/rehearsal", "finite", data=data)
        assert [f.status for f in by_measurement([rate, ran])] == [status, "pass"]


def test_it_is_left_out_where_the_first_steps_raise(rehearsed):
    (found,), said = rehearsed(BROKEN, [failed("forward", "forward/runs", "it raised", "mend it")])
    assert (found.status, said) == ("skip", "")

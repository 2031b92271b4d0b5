"""A folder that a training writes into: only complete checkpoints are judged, each one once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from stayfinite.checkpoint.follow import Follower, write_pointer
from stayfinite.errors import UsageError


def save(folder, step, value=1.0):
    torch.save({"step": step, "model": {"w": torch.full((3,), value)}}, folder / f"step_{step}.pt")
    os.utime(folder / f"step_{step}.pt", (step, step))


def names(reports):
    return [(os.path.basename(r.path), r.verdict) for r in reports]


def test_a_file_is_judged_when_it_no_longer_changes(tmp_path):
    follower = Follower(tmp_path)
    assert follower.poll() == [] and follower.last_good is None
    save(tmp_path, 1)
    whole = (tmp_path / "step_1.pt").read_bytes()
    for size in (100, 400, len(whole)):
        (tmp_path / "step_1.pt").write_bytes(whole[:size])
        assert follower.poll() == []
    assert names(follower.poll()) == [("step_1.pt", "healthy")]
    assert follower.poll() == [] and follower.last_good.endswith("step_1.pt")


def test_a_writer_that_pauses_gets_time(tmp_path):
    follower = Follower(tmp_path, patience=3)
    save(tmp_path, 1)
    whole = (tmp_path / "step_1.pt").read_bytes()
    (tmp_path / "step_1.pt").write_bytes(whole[:300])
    assert [follower.poll() for _ in range(4)] == [[], [], [], []]
    (tmp_path / "step_1.pt").write_bytes(whole)
    assert follower.poll() == [] and names(follower.poll()) == [("step_1.pt", "healthy")]
    (tmp_path / "cut.pt").write_bytes(whole[:300])
    reported = [names(follower.poll()) for _ in range(8)]
    assert [t for t in reported if t] == [[("cut.pt", "unreadable")]]


def test_the_last_good_one_stays_current(tmp_path):
    follower = Follower(tmp_path)
    for step, value in ((1, 1.0), (2, 2.0), (3, float("nan"))):
        save(tmp_path, step, value)
        follower.poll()
        follower.poll()
    assert follower.last_good.endswith("step_2.pt") and follower.num_bad == 1
    os.unlink(tmp_path / "step_2.pt")
    follower.poll()
    assert follower.last_good.endswith("step_1.pt")


def test_a_file_written_anew_is_judged_anew(tmp_path):
    follower = Follower(tmp_path)
    save(tmp_path, 5)
    follower.poll()
    assert names(follower.poll()) == [("step_5.pt", "healthy")]
    save(tmp_path, 5, float("nan"))
    os.utime(tmp_path / "step_5.pt", (99, 99))
    assert follower.poll() == [] and names(follower.poll()) == [("step_5.pt", "corrupt")]


def test_temporary_files_and_data_are_no_checkpoints(tmp_path):
    follower = Follower(tmp_path)
    save(tmp_path, 1)
    os.rename(tmp_path / "step_1.pt", tmp_path / "step_1.pt.tmp")
    torch.save({"embeddings": torch.rand(3, 3)}, tmp_path / "cache.pt")
    follower.poll()
    assert names(follower.poll()) == [("cache.pt", "healthy")] and follower.last_good is None


def test_a_file_is_not_to_be_followed(tmp_path):
    with pytest.raises(UsageError, match="is no folder"):
        Follower(tmp_path / "none")


def test_the_pointer_is_replaced_in_one_step(tmp_path):
    write_pointer(tmp_path / "good", "a.pt")
    write_pointer(tmp_path / "good", None)
    assert (tmp_path / "good").read_text() == "\n" and os.listdir(tmp_path) == ["good"]


def test_the_command_runs_what_it_was_told_to(tmp_path):
    home = tmp_path / "run"
    home.mkdir()
    save(home, 1)
    hook = tmp_path / "hook.py"
    hook.write_text(
        "import json, os, sys; report = json.load(sys.stdin); "
        f"open({str(tmp_path / 'report')!r}, 'w').write(json.dumps([report, os.environ['STAYFINITE_PATH']]))"
    )
    evil = home / "step_2;touch EVIL.pt"
    torch.save({"step": 2, "w": torch.tensor([float("nan")])}, evil)
    command = [sys.executable, "-m", "stayfinite", "scan", "--watch", str(home), "--interval", "0.05",
               "--on-bad", f"{sys.executable} {hook}", "--last-good", str(tmp_path / "good")]  # fmt: skip
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # A test run in the background of a shell ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while not (tmp_path / "report").exists() or not (tmp_path / "good").exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=600)
    finally:
        running.kill()
    assert running.returncode == 1, out
    reported, path = json.loads((tmp_path / "report").read_text())
    assert (
        path == reported["path"] == str(evil)
        and reported["findings"][0]["code"] == "nonfinite_tensor"
    )
    assert (tmp_path / "good").read_text().endswith("step_1.pt\n")
    assert not (tmp_path / "EVIL.pt").exists() and not (home / "EVIL.pt").exists()
    assert "last good: " in out and "1 bad" in out

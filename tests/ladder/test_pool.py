"""Processes side by side: whatever they do, there is an answer and none of them is left over."""

import os
import pathlib
import stat
import sys
import time
from types import SimpleNamespace

import pytest

from stayfinite.ladder import pool
from stayfinite.ladder.climb import _outcome
from stayfinite.ladder.pool import Job, Pool, last_words

CHILD = f"""#!{sys.executable}
import json, os, subprocess, sys, time
spec = json.loads(open(sys.argv[3]).read())
folder, act = spec["folder"], spec["act"]
def tell(name, **answer):
    with open(os.path.join(folder, "." + name), "w") as f:
        json.dump(answer, f)
    os.rename(os.path.join(folder, "." + name), os.path.join(folder, name))
open(os.path.join(folder, "started"), "w").write(str(time.time()))
if act == "answer":
    tell("result.json", status="survived", step=3)
elif act == "slow":
    tell("progress.json", step=2, loss=0.5)
    open(os.path.join(folder, "pid"), "w").write(str(subprocess.Popen(["sleep", "60"]).pid))
    time.sleep(60)
elif act == "crash":
    sys.exit("ValueError: no such data")
elif act == "die":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def small_child(tmp_path, monkeypatch):
    path = tmp_path / "child"
    path.write_text(CHILD)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(sys, "executable", str(path))


def job(tmp_path, act):
    folder = tmp_path / act
    return Job({"act": act, "folder": str(folder)}, os.environ, folder, act)


def has_ended(pid):
    """A killed process takes a moment to go."""
    for _ in range(100):
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_answers_crashes_and_deaths_are_distinguished(tmp_path):
    jobs = [job(tmp_path, act) for act in ("answer", "crash", "die")]
    reported = []
    Pool(3, timeout=300).run(jobs, lambda j, is_over: reported.append(j.label) if is_over else None)
    found = [_outcome((), j) for j in jobs]
    assert [o.status for o in found] == ["survived", "crashed", "crashed"]
    assert found[0].step == 3
    assert [o.text for o in found[1:]] == ["ValueError: no such data", "killed by signal 9"]
    assert last_words(jobs[1]) == "ValueError: no such data"
    assert sorted(reported) == ["answer", "crash", "die"]


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    slow = job(tmp_path, "slow")
    pid = slow.folder / "pid"

    def late_once_it_is_under_way():
        return 1e9 if pid.exists() and pid.read_text() else 0.0

    clock = SimpleNamespace(monotonic=late_once_it_is_under_way, sleep=time.sleep)
    monkeypatch.setattr(pool, "time", clock)
    Pool(1, timeout=1.0).run([slow])
    found = _outcome((), slow)
    assert (found.status, found.step, found.loss) == ("timeout", 2, 0.5)
    assert has_ended(int((tmp_path / "slow" / "pid").read_text()))


def test_an_interrupt_leaves_nobody_behind(tmp_path):
    def interrupt(j, is_over):
        if (j.folder / "pid").exists() and (j.folder / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pool(1, timeout=300).run([job(tmp_path, "slow")], interrupt)
    assert has_ended(int((tmp_path / "slow" / "pid").read_text()))

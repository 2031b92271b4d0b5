"""A scan spread over a Ray cluster of two workers on this machine: the same table as locally."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from stayfinite.checkpoint import scan
from stayfinite.checkpoint.text import describe_scan

ray = pytest.importorskip("ray", reason="needs ray: pip install 'stayfinite[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def make_fleet(folder, count, num_bad):
    state = {"model": {"w": torch.rand(20, 20), "b": torch.rand(20)}}
    for i in range(count):
        values = {"step": i, "model": {k: v.clone() for k, v in state["model"].items()}}
        if i % (count // num_bad) == 3:
            values["model"]["w"][i % 20, 5] = float("nan")
        torch.save(values, folder / f"step_{i}.pt")


def table(report):
    rows = [(c.path, c.verdict, c.step, tuple(f.message for r in c.files for f in r.findings)) for c in report.checkpoints]  # fmt: skip
    return rows, report.exit_code(), report.last_good


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    make_fleet(folder, 500, 20)
    return folder


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
             object_store_memory=100 << 20)  # fmt: skip
    yield
    ray.shutdown()


def workers():
    """The processes that scan, by their names."""
    out = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout
    rows = [line.split(None, 1) for line in out.splitlines()]
    return [int(pid) for pid, args in rows if args.startswith("ray::") and "_look" in args]


def without_time(line):
    return re.sub(r"in [0-9.]+ s\)", "in a while)", line)


def test_the_same_table_though_a_worker_dies(fleet, cluster):
    local = scan(fleet)
    killed, is_over = [], threading.Event()

    def kill_one():
        while not killed and not is_over.is_set():
            for pid in workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.05)

    thread = threading.Thread(target=kill_one)
    thread.start()
    try:
        spread = scan(fleet, ray="auto")
    finally:
        is_over.set()
        thread.join()
    assert killed, "no worker was seen at its work"
    assert table(spread) == table(local)
    assert [c.verdict for c in spread.checkpoints].count("corrupt") == 20
    assert [without_time(x) for x in describe_scan(spread)] == [
        without_time(x) for x in describe_scan(local)
    ]


def test_shards_of_one_checkpoint_are_spread(tmp_path, cluster):
    from tests.checkpoint.samples import write_sharded

    bad = torch.rand(6)
    bad[2] = float("inf")
    folder = write_sharded(tmp_path, {"a": torch.rand(5), "b": bad, "c": torch.rand(4)})
    assert table(scan(folder, ray="auto")) == table(scan(folder))


def test_the_command_on_a_cluster_of_its_own(tmp_path):
    torch.save({"w": torch.tensor([float("nan")])}, tmp_path / "bad.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "good.pt")
    command = [sys.executable, "-m", "stayfinite", "scan", "--ray", "local", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 1, done.stderr
    assert "2 checkpoints: 1 corrupt, 1 healthy" in done.stdout


def test_no_cluster_is_wrong_usage(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "good.pt")
    command = [sys.executable, "-m", "stayfinite", "scan", "--ray", "nonsense://x", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 2 and "no Ray cluster at 'nonsense://x'" in done.stderr

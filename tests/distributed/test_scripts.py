"""`stayfinite run` under torchrun, and on scripts that start their processes themselves."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from tests.launch import the_nursery

from stayfinite.records import Incident
from stayfinite.report.markdown import render_markdown
from stayfinite.report.model import load_run

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "ddp.py"
LIMIT_SECONDS = 900
"""Ends a hang; a busy machine takes what it takes."""

pytestmark = pytest.mark.slow


def run(args: list[str], folder: pathlib.Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment.pop("RANK", None)
    return subprocess.run(
        [sys.executable, *args], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip


def run_forked(args: list[str], folder: pathlib.Path) -> subprocess.CompletedProcess:
    """The same, where it is not about the start of an interpreter: the script forks its ranks itself."""
    done = the_nursery().run(args, folder, GLOO_SOCKET_IFNAME="lo")
    return subprocess.CompletedProcess(args, done.code, done.out, done.err)


def test_a_restart_by_the_launcher_goes_on_in_the_same_run_and_says_from_what(tmp_path):
    """Rank 1 dies behind step 5; what was saved until then is finite, though step 2 was not."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher += ["--max-restarts", "1", "--monitor-interval", "0.1"]
    script = str(SCRIPT.with_name("elastic.py"))
    done = run([*launcher, "-m", "stayfinite", "run", script], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == [
        f"rank {r} began at 6 in attempt 1" for r in range(2)
    ]
    reported = "(attempt 2) after it failed; the last good checkpoint that it wrote is checkpoint.pt, after 5"
    assert reported in done.stderr
    (home,) = tmp_path.glob("stayfinite-runs/*")
    first = [
        json.loads((home / n).read_text().splitlines()[0])
        for n in ("journal-0001.jsonl", "journal.jsonl")
    ]
    assert [f["session"] for f in first] == [1, 2]
    assert first[1]["attempt"] == "1"


def torchrun(*args: str) -> list[str]:
    """It finds a free port by itself."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, "-m", "stayfinite", "run", *args]


def totals(text: str) -> dict[str, str]:
    return dict(re.findall(r"rank (\d): (\S+)", text))


def stories(folder: pathlib.Path) -> list[Incident]:
    files = sorted(folder.glob("stayfinite-runs/*/incidents/*/incident.json"))
    return [Incident.from_json(f.read_text()) for f in files]


def check_reported_once(done: subprocess.CompletedProcess, folder: pathlib.Path) -> None:
    assert done.returncode == 0, done.stderr
    weights = totals(done.stdout)
    assert sorted(weights) == ["0", "1"] and weights["0"] == weights["1"] != "nan"
    first, second = stories(folder)
    assert [(i.event.step, i.event.rank) for i in (first, second)] == [(4, 1), (12, 1)]
    assert first.location.op == "aten.log"
    assert first.location.source.startswith("loss = (model(inputs)")
    reported = re.findall(
        r"stayfinite: step 4 \(epoch 0[^)]*\): the loss is -inf on rank 1", done.stderr
    )
    assert len(reported) == 1
    assert done.stderr.count("stayfinite: 2 incidents in 16 steps") == 1
    (home,) = folder.glob("stayfinite-runs/*")
    names = {p.name for p in home.iterdir()}
    assert {"journal.jsonl", "ledger.jsonl", "ledger.rank1.jsonl", "incidents"} <= names
    left_out = [json.loads(line) for line in (home / "ledger.rank1.jsonl").read_text().splitlines()]
    assert 37 in left_out[0]["indices"]


def test_torchrun(tmp_path):
    check_reported_once(run(torchrun(str(SCRIPT), "faulty"), tmp_path), tmp_path)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_a_script_that_starts_its_own_processes(tmp_path, how):
    start = run_forked if how == "fork" else run
    check_reported_once(
        start(["-m", "stayfinite", "run", str(SCRIPT), "faulty", how], tmp_path), tmp_path
    )


def test_a_healthy_run_is_bit_for_bit_the_plain_one(tmp_path):
    watched = run_forked(["-m", "stayfinite", "run", str(SCRIPT), "healthy", "fork"], tmp_path)
    (tmp_path / "store").unlink(missing_ok=True)
    plain = run_forked([str(SCRIPT), "healthy", "fork"], tmp_path)
    assert totals(watched.stdout) == totals(plain.stdout) != {}
    assert "stayfinite" not in watched.stderr
    assert stories(tmp_path) == []


def test_policy_raise_stops_every_rank(tmp_path):
    args = ["-m", "stayfinite", "run", "--policy", "raise", str(SCRIPT), "faulty", "fork"]
    done = run_forked(args, tmp_path)
    assert done.returncode == 1
    (incident,) = stories(tmp_path)
    assert incident.action.kind == "raised"
    assert totals(done.stdout) == {}


def test_a_rank_that_raises_by_itself_is_explained_without_the_others(tmp_path):
    done = run_forked(["-m", "stayfinite", "run", str(SCRIPT), "raises", "fork"], tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: the loss is not finite" in done.stderr
    (incident,) = stories(tmp_path)
    assert (incident.event.step, incident.event.rank) == (4, 1)
    assert incident.location.op == "aten.log"


@pytest.mark.parametrize("how", ["run", pytest.param("protect", marks=pytest.mark.whole)])
def test_accelerate_launch(tmp_path, how):
    """Accelerate has a launcher for several processes without MPI under the name of GPUs only; none is needed."""
    pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")
    script = str(SCRIPT.with_name("accelerated.py"))
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launcher += ["--main_process_port", "0"]
    ours = ["-m", "stayfinite", "run", script] if how == "run" else [script, "protect"]
    done = run([*launcher, *ours], tmp_path)
    assert done.returncode == 0, done.stderr
    weights = totals(done.stdout)
    assert sorted(weights) == ["0", "1"] and weights["0"] == weights["1"] != "nan"
    assert [(i.event.step, i.event.rank) for i in stories(tmp_path)] == [(4, 1), (12, 1)]
    reported = re.findall(r"stayfinite: step 4[^\n]* the loss is -inf on rank 1", done.stderr)
    assert len(reported) == 1
    (home,) = tmp_path.glob("stayfinite-runs/*")
    check_one_run(home, world=2, began=1)


def test_a_framework_that_starts_the_other_ranks_by_a_command(tmp_path):
    """Lightning runs the script again for each of them; all are watched, or the first would wait for ever."""
    pytest.importorskip("lightning", reason="needs lightning: pip install lightning")
    script = str(SCRIPT.with_name("lightning_ddp.py"))
    done = run(["-m", "stayfinite", "run", "--policy", "skip", script], tmp_path)
    assert done.returncode == 0, done.stderr
    weights = totals(done.stdout)
    assert sorted(weights) == ["0", "1"] and weights["0"] == weights["1"] != "nan"
    (home,) = tmp_path.glob("stayfinite-runs/*")
    assert {i.event.rank for i in stories(tmp_path)} == {1}
    check_one_run(home, world=2, began=1)


def check_one_run(home: pathlib.Path, world: int, began: int) -> None:
    """One journal, reported once, and the ranks side by side."""
    assert [p.name for p in home.glob("journal*")] == ["journal.jsonl"]
    ends = [line for line in (home / "journal.jsonl").read_text().splitlines() if '"end"' in line]
    assert len(ends) == 1
    view = load_run(home)
    assert [r.rank for r in view.ranks] == list(range(world))
    assert [bool(r.began) for r in view.ranks] == [r == began for r in range(world)]
    assert all(r.began + r.followed == len(view.incidents) for r in view.ranks)
    assert len({r.steps for r in view.ranks}) == 1
    assert f"began at rank {began}" in render_markdown(view)


def test_ray_train(tmp_path):
    """Real Ray on this machine, two workers."""
    pytest.importorskip("ray.train.torch", reason="needs Ray Train: pip install 'ray[train]'")
    done = run([str(SCRIPT.with_name("ray_train.py")), str(tmp_path)], tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    weights = {(tmp_path / f"total{r}").read_text() for r in range(2)}
    assert len(weights) == 1 and weights != {"nan"}
    (incident,) = load_run(tmp_path / "run").incidents
    assert (incident.event.step, incident.event.rank) == (3, 1)
    assert incident.location.op == "aten.log"
    assert incident.location.file.endswith("ray_train.py")
    check_one_run(tmp_path / "run", world=2, began=1)


def test_a_guard_in_each_of_several_processes_and_one_run_folder(tmp_path):
    script = str(SCRIPT.with_name("guards.py"))
    done = run([script, str(tmp_path)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("stayfinite: step 3") == 1
    home = tmp_path / "run"
    check_one_run(home, world=2, began=1)
    names = {p.name for p in home.glob("ledger*")}
    assert names == {"ledger.jsonl", "ledger.rank1.jsonl"}

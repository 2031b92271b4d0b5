"""Trainings for several processes are checked as one rank, or it is said what to run instead."""

import textwrap

import pytest
import torch
from tests.ladder.helpers import tree
from tests.launch import alone

from stayfinite.errors import UsageError
from stayfinite.preflight.capture.launch import as_one_rank, needs_launcher
from stayfinite.preflight.capture.script import check_script
from stayfinite.preflight.target import ScriptTarget

pytestmark = pytest.mark.usefixtures("shared_forks")

HEAD = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train(wrap, scale=1.0):
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    y = (x.sum(1) > 0).long()
    x[40] *= scale
    model = wrap(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    for epoch in range(5):
        for a, b in loader:
            loss = nn.functional.cross_entropy(model(a), b)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        total = loss.detach().clone(); dist.all_reduce(total)
        if dist.get_rank() == 0:
            torch.save({"loss": total}, "last.pt")
    dist.destroy_process_group()
"""
DDP = """
dist.init_process_group("gloo")
train(nn.parallel.DistributedDataParallel, SCALE)
"""
FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
world = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (world,))
def wrap(model):
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)
train(wrap)
"""
SPAWN = """
def worker(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    open(f"log{rank}.txt", "w").write("started")
    if world == 1:
        dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"),
                                rank=rank, world_size=world)
        train(lambda m: m)
    nn.Linear(1, 1)(torch.ones(1)).sum().backward()
if __name__ == "__main__":
    world, how = int(sys.argv[1]), sys.argv[2]
    if how == "launcher":
        mp.spawn(worker, args=(world,), nprocs=world)
    else:
        crew = [mp.get_context(how).Process(target=worker, args=(r, world)) for r in range(world)]
        for process in crew: process.start()
        for process in crew: process.join()
"""


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Check a script with this body; nothing of the user's is changed by it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(body, *args, only="forward,stability"):
        (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(body))
        before = tree(tmp_path)
        try:
            return check_script(ScriptTarget("train.py", args), only=[only])
        finally:
            assert tree(tmp_path) == before

    return run


ONE_RANK = "checked as the only process of a distributed training (world size 1)"


@pytest.mark.slow
def test_a_ddp_script_is_checked_as_one_rank_and_its_defect_named(checked):
    report = checked(DDP.replace("SCALE", "float('nan')"), only="data,forward")
    (data,) = (f for f in report.findings if f.check == "data/finite")
    assert data.status == "fail" and "sample 40" in data.subject
    assert ONE_RANK in report.notes


@pytest.mark.slow
def test_an_fsdp_script_that_reads_its_rank_is_checked(checked):
    report = checked(FSDP)
    assert report.verdict == "ready", report.findings
    assert ONE_RANK in report.notes


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has nccl")
def test_nccl_without_a_gpu_is_not_faked(checked):
    with pytest.raises(UsageError, match="asks for the nccl backend, which needs a GPU") as e:
        checked('dist.init_process_group("nccl")')
    assert "try: check it on a machine with a GPU, or let it choose: 'nccl' if" in str(e.value)


@pytest.mark.slow
def test_one_spawned_process_is_run_in_place(checked):
    report = checked(SPAWN, "1", "launcher", only="forward")
    assert report.verdict == "ready", report.findings


@pytest.mark.slow
@pytest.mark.parametrize("how", ["launcher", "spawn", "fork"])
def test_training_in_processes_of_its_own_is_reported(checked, how):
    with pytest.raises(UsageError) as e:
        checked(SPAWN, "2", how)
    assert str(e.value).splitlines() == [
        f"train.py 2 {how} trains in processes that it starts itself, by worker(); check looks at one "
        "process",
        "try: have it start one (nprocs=1), or start its ranks by torchrun, or check a function that "
        "makes the training: stayfinite check FILE.py:build",
    ]


@pytest.mark.slow
def test_under_torchrun_rank_0_reports_and_the_others_leave(tmp_path):
    (tmp_path / "train.py").write_text(HEAD + DDP.replace("SCALE", "1.0"))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = alone([*launch, "-m", "stayfinite", "check", "--only", "forward", "train.py"], tmp_path)
    assert done.code == 0, done.err
    assert done.out.count("verdict: ready") == 1
    assert f"note: {ONE_RANK}" in done.out
    assert "stayfinite check: rank 1 leaves it to rank 0" in done.err


def test_the_environment_of_one_rank_is_complete_and_has_no_agent():
    environ = as_one_rank({"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "x", "A": "b"})
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["A"]) == ("0", "1", "b")
    assert environ["MASTER_PORT"].isdigit()
    assert "TORCHELASTIC_RUN_ID" not in environ


def test_only_a_missing_rank_calls_for_a_launcher():
    text = "ValueError: using env:// rendezvous: environment variable MASTER_ADDR expected, but not set"
    assert needs_launcher(text, {})
    assert not needs_launcher(text, {"MASTER_ADDR": "here"})
    assert not needs_launcher("KeyError: 'rank'", {})

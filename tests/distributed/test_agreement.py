"""Several ranks, one of them faulty: all of them skip or none, and nobody waits for ever."""

import json
import pathlib
import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest
from tests.distributed import training
from tests.launch import environment

from stayfinite.records import Incident

HERE = pathlib.Path(__file__).parent
FAULTS = ("loss", "gradient", "data", "inf_loss", "moment")
LIMIT_SECONDS = 60


@dataclass
class Run:
    ranks: list[dict]
    errors: list[str]

    @property
    def incidents(self) -> list[Incident]:
        """Those of rank 0, once it is sure that every rank has the same."""
        texts = [r["incidents"] for r in self.ranks]
        assert all(t == texts[0] for t in texts), "the ranks tell different stories"
        return [Incident.from_json(t) for t in texts[0]]

    @property
    def state(self) -> list[bytes]:
        states = [r["state"] for r in self.ranks]
        assert all(s == states[0] for s in states), "the ranks have come apart"
        return states[0]


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(
        [sys.executable, str(HERE / "crew.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment(),
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


@pytest.fixture(scope="module")
def crew(server, tmp_path_factory):
    known: dict[str, Run] = {}

    def run(scenario: str, world: int = 2, **job) -> Run:
        key = json.dumps([scenario, world, job], sort_keys=True)
        if scenario == "plain" and key in known:
            return known[key]
        folder = tmp_path_factory.mktemp(scenario)
        job = {"scenario": scenario, "world": world, "folder": str(folder), "kind": "ddp",
               "form": "loop", "limit": LIMIT_SECONDS} | job  # fmt: skip
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        errors = [(folder / f"rank{r}.err").read_text() for r in range(world)]
        told = "\n".join(errors)
        assert code != 124, f"no end within {LIMIT_SECONDS} s: some rank waits for ever\n{told}"
        assert code == 0, told
        files = [folder / f"rank{r}.pkl" for r in range(world)]
        known[key] = Run([pickle.loads(f.read_bytes()) for f in files], errors)
        return known[key]

    return run


def check_fault(crew, world: int, kind: str, form: str, fault: str, policy: str, faulty: int):
    job = {"world": world, "kind": kind}
    run = crew("guarded", **job, form=form, fault=fault, policy=policy, faulty=faulty)
    (incident,) = run.incidents
    if fault == "moment":
        assert incident.event.symptom in ("optimizer_state", "parameter", "loss")
    else:
        assert incident.event.step == training.AT
        assert incident.location.is_reproduced
    assert incident.event.rank == faulty
    assert incident.action.kind == {"skip": "skipped", "raise": "raised"}.get(policy, "rolled_back")
    assert [r["raised"] for r in run.ranks] == [incident.id if policy == "raise" else None] * world
    if policy == "raise":
        return incident, run
    left_out = run.ranks[0]["left_out"]
    assert all(r["left_out"] == left_out for r in run.ranks)
    if fault == "moment" and policy == "skip":
        left_out = []  # run again from the snapshot, every step is finite, and none is left out
    assert run.state == crew("plain", **job, without=left_out).state
    return incident, run


# -- the same in short, for every day ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "form", "fault"),
    [
        ("ddp", "loop", "loss"),
        ("ddp", "step", "gradient"),
        ("fsdp", "step", "inf_loss"),
        ("fsdp", "loop", "moment"),
    ],
)
def test_one_faulty_rank(crew, kind, form, fault):
    incident, run = check_fault(crew, 2, kind, form, fault, "skip", faulty=1)
    op = {"loss": "aten.log", "gradient": "SqrtBackward0", "inf_loss": "aten.exp"}.get(fault)
    assert incident.location.op == op
    if op:
        assert (
            f"# fault: {fault}"
            in pathlib.Path(incident.location.file)
            .read_text()
            .splitlines()[incident.location.line - 1]
        )
        made = [e.name for e in incident.diagnosis.experiments]
        is_whole = kind == "ddp"  # each rank has all of the model, and can compute it alone
        assert bool(made) == is_whole
        assert any("spread over the ranks" in e for e in incident.diagnosis.evidence) != is_whole
    told = ["stayfinite:" in e for e in run.errors]
    assert told == [True, False], "one rank tells, the others are silent"
    assert "on rank 1" in run.errors[0]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_healthy_step_costs_one_tiny_all_reduce(crew, kind):
    """The first step has one more, in which the ranks agree that all of them have room to go back."""
    run = crew("guarded", kind=kind, form="step", settings={"max_batches": 256})
    bare = crew("plain", kind=kind).ranks[0]["counts"]
    assert run.incidents == []
    for rank in run.ranks:
        assert [a - b for a, b in zip(rank["counts"], bare)] == [2] + [1] * (len(bare) - 1)
    assert run.state == crew("plain", kind=kind).state


def test_a_rank_that_trains_by_itself_asks_nobody(crew):
    run = crew("side_training")
    assert [len(r["incidents"]) for r in run.ranks] == [1, 0]
    assert [r["is_on"] for r in run.ranks] == [False, False]


# -- all of it --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["skip", "raise", "rollback"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("world", [2, 4])
def test_every_fault(crew, world, kind, fault, policy):
    form = "step" if (FAULTS.index(fault) + (kind == "ddp") + (policy == "raise")) % 2 else "loop"
    check_fault(crew, world, kind, form, fault, policy, faulty=world - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "form"),
    [("loss", "loop"), ("gradient", "step"), ("inf_loss", "loop"), ("inf_loss", "step")],
)
@pytest.mark.parametrize(
    "extra",
    [
        {"kind": "ddp", "clip": 1.0},
        {"kind": "fsdp", "clip": 1.0},
        {"kind": "ddp", "scale": 4},
        {"kind": "fsdp", "scale": 4},
        {"kind": "ddp", "fused": True, "deferred": True},
        {"kind": "fsdp", "fused": True, "deferred": True},
    ],
    ids=lambda e: "-".join(map(str, e.values())),
)
def test_clipping_scalers_and_deferred_checks(crew, extra, fault, form):
    run = crew("guarded", **extra, form=form, fault=fault)
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state == crew("plain", **extra, without=[training.AT]).state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_fault_in_the_very_last_step(crew, form):
    last = training.NUM_BATCHES - 1
    run = crew("guarded", form=form, fault="loss", at=last)
    (incident,) = run.incidents
    assert (incident.event.step, incident.location.op) == (last, "aten.log")
    assert run.state == crew("plain", without=[last]).state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_deferred_verdict_that_comes_after_the_end(crew, form):
    """The ranks have parted: the one that has it computes its own step again, and asks nobody."""
    last = training.NUM_BATCHES - 1
    run = crew("guarded", form=form, fault="loss", at=last, fused=True, deferred=True)
    reported = [[Incident.from_json(t) for t in r["incidents"]] for r in run.ranks]
    assert [i.event.step for i in reported[1]] == [last]
    assert reported[1][0].location.op == "aten.log"
    assert run.state == crew("plain", without=[last], fused=True).state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_moment_that_is_corrupt_at_the_end_is_told_and_nothing_is_moved(crew, form):
    last = training.NUM_BATCHES - 1
    run = crew("guarded", form=form, fault="moment", at=last)
    told = [[Incident.from_json(t) for t in r["incidents"]] for r in run.ranks]
    assert [len(t) for t in told] == [0, 1]
    assert told[1][0].event.symptom == "optimizer_state"
    assert told[1][0].action.kind == "none"
    healthy = crew("plain").ranks[0]["state"]
    assert run.ranks[0]["state"] == healthy
    assert sum(a != b for a, b in zip(run.ranks[1]["state"], healthy)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_accumulation_without_sync(crew, fault):
    run = crew("guarded", kind="ddp", accumulate=2, fault=fault)
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state == crew("plain", kind="ddp", accumulate=2, without=[4, 5]).state


@pytest.mark.slow
def test_gradients_averaged_by_hand(crew):
    """No wrapper to recognize: that the loop itself uses collectives within its step tells."""
    run = crew("guarded", kind="by_hand", fault="inf_loss")
    assert [r["is_on"] for r in run.ranks] == [True, True]
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state == crew("plain", kind="by_hand", without=[training.AT]).state


@pytest.mark.slow
def test_a_loop_that_agrees_by_itself_is_left_alone(crew):
    """It skips on every rank before the backward: nothing bad was ever about to be learned."""
    run = crew("guarded", kind="ddp", fault="loss", own_check=True)
    assert run.incidents == []
    assert run.state == crew("plain", kind="ddp", without=[training.AT], own_check=True).state


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, "loss"])
def test_epochs_that_end_at_different_steps(crew, fault):
    run = crew("uneven_epochs", fault=fault)
    assert {i.event.rank for i in run.incidents} == ({1} if fault else set())
    assert run.state


@pytest.mark.slow
def test_uneven_inputs_with_join_are_left_alone(crew):
    run = crew("joined")
    assert [r["count"] for r in run.ranks] == [4, 7]
    weights = [r["state"][:4] for r in run.ranks]  # which DDP hands from the last rank to all
    assert weights[0] == weights[1]
    assert "are not watched" in run.errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_loop_without_a_loader(crew, kind):
    run = crew("loop_without_loader", kind=kind, fault="loss")
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state

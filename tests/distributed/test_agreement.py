"""Several ranks, one of them faulty: all of them skip or none, and nobody waits for ever."""

import itertools
import pathlib

import pytest
from tests.distributed import training

from stayfinite.records import Incident

FAULTS = ("loss", "gradient", "data", "inf_loss", "moment")
POLICIES = ("skip", "raise", "rollback")
UNEXPLAINED = {"diagnose": False}


def check_fault(crew, world, kind, form, fault, policy, faulty, diagnose=True):
    job = {"world": world, "kind": kind}
    more = {} if diagnose else {"settings": UNEXPLAINED}
    run = crew("guarded", **job, form=form, fault=fault, policy=policy, faulty=faulty, **more)
    (incident,) = run.incidents
    if fault == "moment":
        assert incident.event.symptom in ("optimizer_state", "parameter", "loss")
    else:
        assert incident.event.step == training.AT
        assert incident.location.is_reproduced
    assert incident.event.rank == faulty
    kinds = {"skip": "rebuilt" if fault == "moment" else "skipped", "raise": "raised"}
    assert incident.action.kind == kinds.get(policy, "rolled_back")
    assert [r["raised"] for r in run.ranks] == [incident.id if policy == "raise" else None] * world
    if policy == "raise":
        return incident, run
    left_out = run.ranks[0]["left_out"]
    assert all(r["left_out"] == left_out for r in run.ranks)
    if fault == "moment" and policy == "skip":
        assert left_out == []  # run again from the snapshot, every step is finite
    assert run.state == crew("plain", **job, without=left_out).state
    return incident, run


def check_proved(incident, by_whom: str) -> None:
    """A cause, an experiment and a diff that was run, as on one rank."""
    assert incident.diagnosis.cause is not None
    assert incident.diagnosis.experiments
    fix = incident.diagnosis.fixes[0]
    assert fix.status == "proved" and fix.diff
    assert by_whom in fix.proof.note


# -- the same in short, for every day ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "form", "fault"),
    [
        ("ddp", "loop", "loss"),
        pytest.param("ddp", "step", "gradient", marks=pytest.mark.slow),
        pytest.param("fsdp", "step", "inf_loss", marks=pytest.mark.slow),
        pytest.param("fsdp", "loop", "moment", marks=pytest.mark.slow),
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
        check_proved(
            incident, "run by rank 1 alone" if kind == "ddp" else "run by all ranks together"
        )
    reported = ["stayfinite:" in e for e in run.errors]
    assert reported == [True, False], "one rank tells, the others are silent"
    assert "on rank 1" in run.errors[0]
    assert "not applied on any rank" in incident.action.detail or fault == "moment"


SELDOM = [1, 1, 0, 1, 0, 0, 0, 1]
"""SyncSchedule in the first eight steps of ranks that look at the same."""


@pytest.mark.parametrize(
    ("extra", "more"),
    [
        ({"kind": "ddp"}, SELDOM),
        ({"kind": "fsdp"}, [1] * 8),
        ({"kind": "fsdp", "clip": 1.0}, SELDOM),  # by the norm of all shards
    ],
    ids=["ddp", "fsdp", "fsdp-clip"],
)
def test_what_a_healthy_step_asks_of_the_others(crew, extra, more):
    """The first step has one more, in which the ranks agree that all of them have room to go back."""
    run = crew("guarded", **extra, form="step", settings={"max_batches": 256})
    plain = crew("plain", **extra)
    bare = plain.ranks[0]["counts"]
    assert run.incidents == []
    for rank in run.ranks:
        assert [a - b for a, b in zip(rank["counts"], bare)] == [more[0] + 1, *more[1:]]
    assert run.state == plain.state


@pytest.mark.slow
def test_a_step_that_is_bad_on_one_rank_alone_is_left_out_by_nobody_alone(crew):
    """Its gradients went bad behind the exchange, in a step on which nobody is asked: no rank hangs or parts from the
    others, and when they see what came of it, all of them go back."""
    settings = {"max_batches": 8, "rank_seconds": 2.0}
    run = crew("guarded", kind="ddp", form="loop", corrupts_at=training.AT, settings=settings)
    assert f"step {training.AT}: a value is not finite on this rank" in run.errors[1]
    assert "a value is not finite on this rank" not in run.errors[0]
    (incident,) = run.incidents
    assert (incident.event.step, incident.action.kind) == (training.AT + 1, "rebuilt")
    assert run.state == crew("plain", kind="ddp").state


def test_a_rank_that_nobody_watches_is_not_waited_for(crew):
    """It would take what it is asked for its training's own."""
    run = crew("one_watched", module="troubles", kind="ddp")
    assert "no answer from rank 1 within 0.5 s" in run.errors[0]
    assert run.state == crew("plain", kind="ddp").state


@pytest.mark.slow
def test_a_rank_that_trains_by_itself_asks_nobody(crew):
    run = crew("side_training")
    assert [len(r["incidents"]) for r in run.ranks] == [1, 0]
    assert [r["is_on"] for r in run.ranks] == [False, False]


# -- all of it --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "policy"), list(itertools.product(FAULTS, POLICIES)))
def test_every_fault(crew, fault, policy):
    """DDP and FSDP in turn, and two and four ranks: each meets every fault and every policy.

    `python -m tests.distributed.table` runs all of them with each other on eight.
    """
    turn = FAULTS.index(fault) + POLICIES.index(policy)
    kind = ("ddp", "fsdp")[turn % 2]
    world = 4 if turn % 3 == 0 else 2
    form = "step" if turn % 4 < 2 else "loop"
    check_fault(crew, world, kind, form, fault, policy, world - 1, diagnose=policy == "raise")


EXTRAS = ({"clip": 1.0}, {"scale": 4}, {"fused": True, "deferred": True})
WAYS = (("loss", "loop"), ("gradient", "step"), ("inf_loss", "loop"), ("inf_loss", "step"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "fault", "form"),
    [
        # DDP and FSDP in turn, so that each meets every extra, and each extra every fault and form.
        pytest.param(
            {"kind": ("ddp", "fsdp")[(i + j) % 2], **extra}, *way, id="-".join((*extra, *way)),
            marks=[pytest.mark.whole] if way == WAYS[2 + i % 2] else [],
        )
        for (i, extra), (j, way) in itertools.product(enumerate(EXTRAS), enumerate(WAYS))
    ],
)  # fmt: skip
def test_clipping_scalers_and_deferred_checks(crew, extra, fault, form):
    run = crew("guarded", **extra, form=form, fault=fault, settings=UNEXPLAINED)
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state == crew("plain", **extra, without=[training.AT]).state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_fault_in_the_very_last_step(crew, form):
    last = training.NUM_BATCHES - 1
    run = crew("guarded", form=form, fault="loss", at=last, settings=UNEXPLAINED)
    (incident,) = run.incidents
    assert (incident.event.step, incident.location.op) == (last, "aten.log")
    assert run.state == crew("plain", without=[last]).state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_deferred_verdict_that_comes_after_the_end(crew, form):
    """The ranks have parted: the one that has it computes its own step again, and asks nobody."""
    last = training.NUM_BATCHES - 1
    run = crew(
        "guarded", form=form, fault="loss", at=last, fused=True, deferred=True, settings=UNEXPLAINED
    )
    reported = [[Incident.from_json(t) for t in r["incidents"]] for r in run.ranks]
    assert [i.event.step for i in reported[1]] == [last]
    assert reported[1][0].location.op == "aten.log"
    assert run.state == crew("plain", without=[last], fused=True).state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["step", "loop"])
def test_a_moment_that_is_corrupt_at_the_end_is_reported_and_nothing_is_moved(crew, form):
    last = training.NUM_BATCHES - 1
    run = crew("guarded", form=form, fault="moment", at=last)
    reported = [[Incident.from_json(t) for t in r["incidents"]] for r in run.ranks]
    assert [len(t) for t in reported] == [0, 1]
    assert reported[1][0].event.symptom == "optimizer_state"
    assert reported[1][0].action.kind == "none"
    healthy = crew("plain").ranks[0]["state"]
    assert run.ranks[0]["state"] == healthy
    assert sum(a != b for a, b in zip(run.ranks[1]["state"], healthy)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_accumulation_without_sync(crew, fault):
    run = crew("guarded", kind="ddp", accumulate=2, fault=fault, settings=UNEXPLAINED)
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state == crew("plain", kind="ddp", accumulate=2, without=[4, 5]).state


@pytest.mark.slow
def test_gradients_averaged_by_hand(crew):
    """No wrapper to recognize: that the loop itself uses collectives within its step tells."""
    run = crew("guarded", kind="by_hand", fault="inf_loss", settings=UNEXPLAINED)
    assert [r["is_on"] for r in run.ranks] == [True, True]
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state == crew("plain", kind="by_hand", without=[training.AT]).state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "policy", "kind", "lost"),
    [
        ("moment", "skip", "rolled_back", [3, 4, 5]),  # since the snapshot
        ("data", "sanitize", "skipped", [4]),
    ],
)
def test_a_step_whose_gradients_are_averaged_by_hand_is_not_made_again(
    crew, fault, policy, kind, lost
):
    """The loop's statements without the exchange would part the ranks."""
    more = {"settings": UNEXPLAINED}
    run = crew("guarded", kind="by_hand", fault=fault, policy=policy, **more)
    (incident,) = run.incidents
    assert incident.action.kind == kind
    assert run.state == crew("plain", kind="by_hand", without=lost).state


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
@pytest.mark.parametrize(
    ("at", "fault", "policy"),
    [(2, "data", "skip"), (3, "gradient", "rollback"), (5, "gradient", "skip")],
)
def test_uneven_inputs_with_join(crew, at, fault, policy):
    """Of three ranks one may have ended: those that still train leave the step out, and nobody is asked."""
    run = crew("joined", world=3, fault=fault, at=at, faulty=2, policy=policy, is_watched=True)
    rest = crew("joined", world=3, without=[at])
    weights = [r["state"][:4] for r in run.ranks]  # which DDP hands from the last rank to all
    assert weights == [r["state"][:4] for r in rest.ranks]
    assert run.ranks[2]["state"] == rest.ranks[2]["state"]
    reported = [[Incident.from_json(t) for t in r["incidents"]] for r in run.ranks]
    assert [len(t) for t in reported] == [int(4 + 2 * r > at) for r in range(3)]
    incident = reported[2][0]
    assert incident.location.op == {"data": None, "gradient": "SqrtBackward0"}[fault]
    causes = {"data": "bad_input_data", "gradient": "singular_gradient"}
    assert (incident.event.rank, incident.diagnosis.cause) == (2, causes[fault])
    assert {i.action.kind for t in reported for i in t} == {"skipped"}
    for others in reported[:2]:
        assert all("came from another rank" in i.location.note for i in others)
        assert all(i.diagnosis.cause is None for i in others)


@pytest.mark.slow
def test_an_optimizer_that_takes_part_in_a_join_is_left_alone(crew):
    """Its step talks to the ranks that have ended, too: nobody may leave it out."""
    run = crew("joined", fault="gradient", at=2, is_watched=True, has_zero=True)
    reported = [Incident.from_json(t) for r in run.ranks for t in r["incidents"]]
    assert {(i.event.symptom, i.action.kind) for i in reported} == {("parameter", "none")}


@pytest.mark.slow
def test_a_bad_loss_of_one_rank_with_join_is_reported_where_the_gradients_are_finite(crew):
    """The others cannot be asked, and there is nothing bad to learn."""
    run = crew("joined", world=2, fault="inf_loss", at=2, is_watched=True)
    assert [r["incidents"] for r in run.ranks] == [[], []]
    assert "step 2: the loss is inf and the gradients are finite" in run.errors[1]
    assert [r["state"] for r in run.ranks] == [r["state"] for r in crew("joined").ranks]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_loop_without_a_loader(crew, kind):
    run = crew("loop_without_loader", kind=kind, fault="loss")
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert run.state

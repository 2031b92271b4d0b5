"""Models that are spread over the ranks: the same cause, line, experiments and proved diff as on one rank."""

import math

import pytest
from tests.distributed import training
from tests.distributed.test_agreement import check_fault, check_proved

from stayfinite.records import Incident

pytestmark = pytest.mark.slow
TOGETHER = "run by all ranks together"


def test_tensor_parallel_is_experimented_with_by_all_ranks(crew):
    """All of them have the same batch: rows are taken from it on each, or the shapes would not fit."""
    incident, _ = check_fault(crew, 2, "tp", "step", "loss", "skip", faulty=0)
    assert incident.location.op == "aten.log"
    assert incident.diagnosis.cause == "domain_error"
    check_proved(incident, TOGETHER)


@pytest.mark.parametrize(
    ("kind", "world", "form"), [("2d", 4, "loop"), ("fsdp_half", 2, "step"), ("tp", 2, "loop")]
)
def test_meshes_and_mixed_precision(crew, kind, world, form):
    run = crew("guarded", world=world, kind=kind, form=form, fault="gradient", faulty=0)
    (incident,) = run.incidents
    assert incident.location.op == "SqrtBackward0"
    assert incident.event.rank == 0
    check_proved(incident, TOGETHER)
    assert run.state == crew("plain", world=world, kind=kind, without=[training.AT]).state


@pytest.mark.parametrize(
    ("fault", "op", "cause"),
    [("gradient", "SqrtBackward0", "singular_gradient"), ("data", None, "bad_input_data")],
)
def test_a_group_of_a_single_rank_is_seen_through(crew, fault, op, cause):
    """FSDP2 moves its values through memory of its own there, too."""
    run = crew("guarded", world=1, kind="fsdp", form="step", fault=fault, faulty=0)
    (incident,) = run.incidents
    assert (incident.location.op, incident.diagnosis.cause) == (op, cause)
    assert run.state == crew("plain", world=1, kind="fsdp", without=[training.AT]).state


def test_a_step_of_the_older_fsdp_is_left_out_by_all_and_never_computed_again(crew):
    """A replay that breaks off would leave its parameters gathered half-way."""
    run = crew("guarded", kind="flat", form="loop", fault="loss")
    (incident,) = run.incidents
    assert (incident.event.step, incident.event.rank) == (training.AT, 1)
    assert "FullyShardedDataParallel cannot be computed again" in incident.location.note
    plain = crew("plain", kind="flat", without=[training.AT])
    assert [r["state"] for r in run.ranks] == [r["state"] for r in plain.ranks]


def test_a_rank_that_breaks_off_ends_the_replay_for_all_and_the_training_goes_on(crew):
    """Rank 1 is in a collective of the replay then, and is let go; the next replays are made."""
    at = training.AT + 4
    run = crew("disturbed", module="troubles", kind="fsdp", raises_at=at)
    (incident,) = run.incidents
    assert incident.location.op == "aten.log"
    assert run.ranks[0]["calls"] > at
    assert run.state == crew("plain", kind="fsdp", without=[training.AT]).state


def test_a_replay_that_ends_in_a_backward_leaves_nothing_in_the_wrapper(crew):
    run = crew("broken_backward", module="troubles")
    (incident,) = run.incidents
    assert incident.action.kind == "skipped"
    assert run.state == crew("plain", kind="ddp", without=[training.AT]).state


def test_a_layer_that_only_replays_have_used_stays_unused(crew):
    """The reducer notes which parameters had a gradient, also of a replay that goes nowhere."""
    run = crew("unused", module="troubles", fault="loss")
    (incident,) = run.incidents
    assert incident.location.op == "aten.log"
    assert run.state == crew("unused", module="troubles", without=[training.AT]).state


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_report_names_the_rank_that_the_others_wait_for(crew, kind):
    assert crew("slow_data", module="troubles", kind=kind).ranks[0]["late"] == [1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("policy", ["auto", "heal"])
def test_a_training_that_has_run_away_is_stopped_or_healed_on_all_ranks(crew, kind, policy):
    run = crew("runs_away", module="troubles", kind=kind, policy=policy)
    incident = run.incidents[0]
    assert incident.diagnosis.cause == "lr_divergence"
    rate = next(f for f in incident.diagnosis.fixes if f.experiment == "smaller_lr")
    assert rate.status == "proved"
    assert incident.action.kind == {"auto": "stopped", "heal": "rolled_back"}[policy]
    assert all(math.isfinite(r["loss"]) == (policy == "heal") for r in run.ranks)
    assert all(bool(r["stopped"]) == (policy == "auto") for r in run.ranks)
    assert run.state
    if policy == "auto":
        assert [r["saved"] for r in run.ranks] == [r["state"] for r in run.ranks]


def test_a_policy_that_only_skips_has_the_learning_rate_searched_once(crew):
    """It takes dozens of steps of all ranks, and the next failure would tell the same."""
    run = crew("runs_away", module="troubles", kind="ddp", policy="skip", epochs=2, lr=1e4)
    tried = ["smaller_lr" in (e.name for e in i.diagnosis.experiments) for i in run.incidents]
    assert len(tried) > 2 and tried == [True] + [False] * (len(tried) - 1)
    assert run.state


def test_a_rank_that_does_not_answer_is_not_waited_for_longer_than_is_set(crew):
    run = crew("disturbed", module="troubles", kind="fsdp", late_at=2, rank_seconds=1.0)
    reported = [[Incident.from_json(t) for t in r["incidents"]] for r in run.ranks]
    assert [len(t) for t in reported] == [1, 1]
    assert {t[0].action.kind for t in reported} == {"skipped"}
    assert any("did not answer within 1 s" in t for t in run.ranks[1]["incidents"]), run.ranks[1]
    assert run.state == crew("plain", kind="fsdp", without=[training.AT]).state


@pytest.mark.parametrize(
    ("kind", "form", "fault", "is_bug"),
    [
        ("fsdp", "loop", "loss", False),
        ("ddp", "step", "moment", False),
        pytest.param("ddp", "loop", "moment", False, marks=pytest.mark.whole),
        ("ddp", "step", "gradient", True),
    ],
)
def test_whichever_message_one_rank_misses_all_of_them_decide_alike(
    crew, kind, form, fault, is_bug
):
    """The last one, too: the others have it then, and cannot know that one has not."""
    job = {"kind": kind, "form": form, "fault": fault, "policy": "skip", "victim": 1}
    job["is_bug"] = is_bug
    run = crew("missed_messages", module="troubles", **job)
    one, other = (r["found"] for r in run.ranks)
    assert len(one) > 4, "there was no investigation to disturb"
    assert [f["actions"] for f in one] == [f["actions"] for f in other]
    assert [f["state"] for f in one] == [f["state"] for f in other]

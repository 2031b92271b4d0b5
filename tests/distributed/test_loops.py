"""Loops as in public code, of which a replay must not disturb the rest, and whose failures are those of one rank."""

import pytest
from tests.distributed import training
from tests.distributed.test_agreement import check_proved

pytestmark = pytest.mark.slow


def looped(crew, loop: str, fault: str, **more):
    """The incident and the run, which leaves what a run without the batch leaves."""
    run = crew("looped", module="loops", loop=loop, fault=fault, **more)
    (incident,) = run.incidents
    at = more.get("at", training.AT)
    assert run.state == crew("looped", module="loops", loop=loop, at=at).state
    assert (incident.event.step, incident.event.rank) == (at, more.get("faulty", 1))
    return incident, run


def test_a_wrapper_that_waits_for_its_backward_is_left_as_it_is(crew):
    """A replay by one rank ran that backward; then DDP took the training's own for a second one."""
    incident, _ = looped(crew, "gan", "loss")
    assert incident.location.op == "aten.log"
    check_proved(incident, "run by all ranks together")


@pytest.mark.parametrize("loop", ["exchanging", "exchanging by hand"])
def test_a_forward_that_exchanges_values_is_computed_again_by_all_ranks(crew, loop):
    """The values that the others sent are part of this rank's loss, so no rank can leave them out."""
    incident, _ = looped(crew, loop, "data")
    assert incident.diagnosis.cause == "bad_input_data"
    assert {part.rank: part.role for part in incident.ranks} == {0: "received", 1: "began"}


def test_a_loss_over_nothing_is_passed_on_though_its_gradients_are_zero(crew):
    """Every rank sees the step as bad; else this one would wait for the others, in vain, and apply it."""
    incident, run = looped(crew, "selected", "nothing valid")
    assert incident.event.symptom == "loss"
    assert incident.diagnosis.cause == "empty_reduction"
    assert not any("not on every rank" in text for text in run.errors)


def test_new_buckets_of_the_wrapper_are_not_taken_for_forgotten_memory(crew):
    """DDP makes them in the second forward. If the first step is bad, that is its replay."""
    incident, _ = looped(crew, "selected", "data", at=0, settings={"diagnose": False})
    assert incident.event.phase == "data"

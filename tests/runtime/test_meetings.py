"""When ranks meet over a step: seldom while all of them see the same, and in every step where they do not."""

import math

import pytest

from stayfinite.runtime.ranks.meetings import (
    DUE,
    NOT_DUE,
    URGENT,
    Agreed,
    DeepCheckVote,
    SyncSchedule,
    digest_of,
)
from stayfinite.runtime.window_log import WindowLog


def agreed(
    *digests: float | None, votes: tuple[DeepCheckVote, ...] = (), bad: float = 0.0
) -> Agreed:
    """What ranks with these digests hear from each other."""
    every = votes or (DeepCheckVote(NOT_DUE, 64, 64),) * len(digests)
    said = [(bad, *Agreed.encode(w, d)) for w, d in zip(every, digests)]
    return Agreed.decode([max(column) for column in zip(*said)])


def test_the_way_to_the_next_meeting_doubles_while_the_ranks_look_at_the_same():
    meetings, left = SyncSchedule(), []
    for _ in range(9):
        meetings.note(agreed(3.5, 3.5, 3.5))
        left.append(meetings.left)
    assert left == [0, 1, 3, 7, 15, 31, 63, 63, 63]


def test_ranks_that_once_looked_at_different_things_meet_in_every_step_from_then_on():
    meetings = SyncSchedule()
    for digests in ((3.5, 3.5), (3.5, 3.5), (3.5, 3.25), (3.5, 3.5), (3.5, 3.5)):
        meetings.note(agreed(*digests))
    assert meetings.left == 0
    assert not meetings.are_spaced


@pytest.mark.parametrize("own", [None, math.nan, math.inf])
def test_a_rank_that_cannot_tell_what_it_looks_at_is_asked_in_every_step(own):
    assert agreed(2.0, own).is_alike is False


def test_gradients_that_are_all_zero_and_bad_steps_show_nothing():
    assert agreed(0.0, 0.0).is_alike is None
    assert agreed(2.0, 2.5, bad=1.0).is_alike is None
    meetings = SyncSchedule()
    for _ in range(3):
        meetings.note(agreed(0.0, 0.0))
    assert meetings.left == 0


def test_the_next_step_after_a_bad_one_is_a_meeting():
    meetings = SyncSchedule()
    for _ in range(4):
        meetings.note(agreed(1.0, 1.0))
    meetings.note(agreed(1.0, 1.0, bad=1.0))
    assert meetings.left == 0
    assert meetings.are_spaced


def test_no_rank_has_to_wait_for_a_deep_check_that_it_needs():
    soon = agreed(1.0, 1.0, votes=(DeepCheckVote(NOT_DUE, 12, 16), DeepCheckVote(NOT_DUE, 16, 5)))
    assert (soon.is_due, soon.most) == (False, 5)
    late = agreed(1.0, 1.0, votes=(DeepCheckVote(DUE, 1, 16), DeepCheckVote(NOT_DUE, 9, 16)))
    assert (late.is_due, late.most) == (False, 9)
    assert agreed(
        1.0, 1.0, votes=(DeepCheckVote(NOT_DUE, 9, 9), DeepCheckVote(URGENT, 1, 16))
    ).is_due


def test_a_rank_says_when_its_clock_and_its_memory_will_want_one():
    log = WindowLog(6)
    assert DeepCheckVote.of(False, log, cost=1.0, budget=0.01, elapsed=0.0) == (NOT_DUE, 64, 5)
    assert DeepCheckVote.of(False, log, cost=1.0, budget=0.01, elapsed=100.0) == (DUE, 1, 5)
    assert DeepCheckVote.of(True, log, cost=1.0, budget=0.01, elapsed=1.0) == (URGENT, 1, 6)


def test_other_gradients_have_another_digest():
    assert digest_of([1.0, 2.0]) != digest_of([2.0, 1.0])
    assert digest_of([]) == 0

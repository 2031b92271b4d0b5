"""What a rank does in its steps, by a clock of the test's own."""

import pytest

from stayfinite.runtime.ranks import summary as module
from stayfinite.runtime.ranks.summary import RankSummary


@pytest.fixture
def at(monkeypatch):
    """`at(seconds).call()`: something happens at that time."""
    now = [0.0]
    monkeypatch.setattr(module, "_clock", lambda: now[0])
    summary = RankSummary()

    def at(seconds):
        now[0] = seconds
        return summary

    return at


def test_a_step_in_its_parts(at):
    at(1.0).open()
    at(9.0).end_step()  # the first one makes the connections
    at(10.0).open()
    at(12.0).start_backward()
    summary = at(15.0)
    summary.end_step()
    assert (summary.num_steps, summary.num_timed) == (2, 1)
    assert (summary.seconds, summary.between, summary.forward) == (6.0, 1.0, 2.0)


def test_accumulation_counts_up_to_the_last_backward(at):
    at(1.0).end_step()
    for opened, backward in ((2.0, 3.0), (4.0, 6.0)):
        at(opened).open()
        at(backward).start_backward()
    summary = at(8.0)
    summary.end_step()
    assert (summary.seconds, summary.between, summary.forward) == (7.0, 1.0, 4.0)


def test_an_investigation_is_no_part_of_a_step(at):
    at(1.0).end_step()
    at(2.0).interrupt()
    at(90.0).open()
    at(91.0).start_backward()
    at(92.0).end_step()
    summary = at(93.0)
    summary.end_step()
    assert (summary.num_steps, summary.num_timed, summary.seconds) == (3, 1, 1.0)

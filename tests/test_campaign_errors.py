"""The campaign of thrown exceptions, a short one."""

import pytest
from tests.campaign_errors import Campaign, Throw, Training, as_users_have_it
from tests.launch import ROOT, alone

from stayfinite.runtime.engine import Engine

pytestmark = pytest.mark.slow


def test_no_training_feels_an_exception_in_our_own_functions():
    """In a process of its own: what has failed there stays off there."""
    done = alone(["-m", "tests.campaign_errors", "--count", "20", "--seed", "13"], ROOT)
    assert done.code == 0, done.out + done.err
    assert "20 thrown, 0 wrong" in done.out


def test_the_campaign_notices_a_training_that_ends_differently():
    one = Campaign(seed=0)
    training = Training("loader", 2, False)
    with as_users_have_it():
        one._may_end_with(training)
        one._find_holders()
        one._allowed["loader", 2] = []
        wrong, has_thrown = one.run(training, Throw(Engine.handle.__code__, 1, "RuntimeError"))
    assert has_thrown
    assert wrong == "ended with another state"

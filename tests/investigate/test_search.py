"""Of the values that a training survives, the one that is offered."""

from stayfinite.investigate.search import Search


def best(passed, left):
    search = object.__new__(Search)
    search._learned, search._left = set(passed), left
    return search._best_of(passed)


def test_of_two_rates_that_pass_the_one_with_the_lower_loss_is_offered():
    assert best({0.1: 16, 0.03: 16}, {0.1: 0.7, 0.03: 0.5}) == 0.03


def test_a_smaller_rate_that_is_no_better_is_not():
    assert best({0.1: 16, 0.03: 16}, {0.1: 0.7, 0.03: 0.68}) == 0.1
    assert best({0.1: 16, 0.03: 5}, {0.1: 0.7}) == 0.1

"""When a run must stop."""

import pytest

from stayfinite import Policy


@pytest.mark.parametrize(
    ("in_a_row", "total", "reason"),
    [
        (1, 1, None),
        (3, 3, None),
        (4, 4, "4 steps in a row were skipped (limit 3)"),
        (1, 10, None),
        (1, 11, "11 steps were skipped in all (limit 10)"),
        (4, 11, "4 steps in a row were skipped (limit 3)"),
    ],
)
def test_stop_reason(in_a_row, total, reason):
    policy = Policy(max_consecutive_skips=3, max_total_skips=10)
    assert policy.stop_reason(in_a_row, total) == reason


def test_a_policy_passes_through():
    policy = Policy(name="raise")
    assert Policy.parse(policy) is policy

"""When a run must stop."""

import pytest
import torch

from stayfinite import BudgetExceededError, Guard, Policy


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


def test_a_good_batch_that_only_the_loss_scale_corrupts_breaks_the_row_of_bad_ones():
    """mmgcn: every few batches one was fine, and each halved the scale towards one that works."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    policy = Policy(name="skip", max_consecutive_skips=2)
    good, bad = torch.full((4, 2), 30.0), torch.full((4, 2), float("nan"))
    with Guard(model, optimizer, scaler=scaler, policy=policy) as guard:
        for x in (bad, bad, good, bad, bad, good, bad, bad):
            guard.step(lambda m, x: m(x).square().mean() + 1, x)
        assert len(guard.incidents) == 6
        with pytest.raises(BudgetExceededError, match="3 steps in a row"):
            guard.step(lambda m, x: m(x).square().mean() + 1, bad)

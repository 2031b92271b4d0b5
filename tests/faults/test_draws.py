"""Steps that fail because of the random numbers they draw, not because of their batch."""

import pytest
import torch
from torch import nn

from stayfinite import Guard


def unlucky_loss(model, batch, share):
    """Infinite whenever the number drawn is below `share`."""
    drawn = torch.rand(())
    weight = 1 / torch.where(drawn < share, 0.0, drawn)
    return (model(batch).square().mean() + 0.1) * weight


def train(form, share=0.1, bad=(), left_out=(), num=60):
    torch.manual_seed(0)
    batches = [torch.randn(4, 3) for _ in range(num)]
    for i in bad:
        batches[i][0, 0] = float("nan")
    batches = [b for i, b in enumerate(batches) if i not in left_out]
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, settings={"diagnose": False}) as guard:
        if form == "step":
            for batch in batches:
                guard.step(lambda m, b: unlucky_loss(m, b, share), batch)
        else:
            for batch in guard(batches):
                optimizer.zero_grad()
                unlucky_loss(model, batch, share).backward()
                optimizer.step()
    return guard, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("form", ["step", "loop"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_numbers_on_which_two_steps_failed_are_left_behind(form, share):
    guard, weights = train(form, share)
    steps = [i.event.step for i in guard.incidents]
    assert weights.isfinite().all()
    assert 2 <= len(steps) < 45, "without leaving them behind, every step after the first fails"
    details = [i.action.detail for i in guard.incidents]
    assert "random state are as before it" in details[0]
    assert "the random numbers are left behind" in details[1]


@pytest.mark.parametrize("form", ["step", "loop"])
def test_bad_batches_in_a_row_use_no_random_number_up(form):
    guard, weights = train(form, share=0.0, bad=(7, 8, 9))
    assert [i.event.step for i in guard.incidents] == [7, 8, 9]
    _, without = train(form, share=0.0, bad=(7, 8, 9), left_out=(7, 8, 9))
    assert torch.equal(weights, without)


def test_a_rollback_does_not_draw_the_bad_numbers_for_ever():
    torch.manual_seed(0)
    batches = [torch.randn(4, 3) for _ in range(80)]
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Guard(model, optimizer, policy="rollback", settings={"diagnose": False}) as guard:
        for batch in batches:
            guard.step(lambda m, b: unlucky_loss(m, b, 0.05), batch)
    assert 2 <= len(guard.incidents) < 20
    assert all(p.isfinite().all() for p in model.parameters())

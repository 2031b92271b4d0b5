"""The usual formula fails on the input on which the safe one does not: the reason for each to exist."""

import pytest
import torch
from tests.numerics.cases import CASES, leaves, value_and_grads

import stayfinite.numerics as sf


def is_finite(value, grads):
    return bool(value.isfinite().all()) and all(bool(g.isfinite().all()) for g in grads)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_usual_formula_fails_where_ours_does_not(case):
    inputs = case.failing()
    usual = value_and_grads(case.textbook, leaves(inputs))
    ours = value_and_grads(case.fn, leaves(inputs))
    assert is_finite(*ours)
    if case.fails_by == "dead":
        assert not usual[1][0].any() and ours[1][0].any()
    else:
        assert not is_finite(*usual)


def test_the_seeds_epsilons_do_not_help():
    """What the guides prescribe: an epsilon that half precision rounds away, or a clamp."""
    score = torch.tensor([-20.0], dtype=torch.float16, requires_grad=True)
    loss = -torch.log(torch.sigmoid(score) + 1e-8).mean()
    assert loss.isinf()
    assert sf.bpr_loss(score, torch.zeros_like(score)).item() == 20.0

    # In fp32 the epsilon is there, and takes the gradient away where the ranking is worst.
    score = torch.tensor([-30.0], requires_grad=True)
    (usual,) = torch.autograd.grad(-torch.log(torch.sigmoid(score) + 1e-8).mean(), score)
    (ours,) = torch.autograd.grad(sf.bpr_loss(score, torch.zeros(1)), score)
    assert abs(usual.item()) < 1e-4 and ours.item() == pytest.approx(-1.0)

    # A clamped loss has no gradient at all.
    x = torch.tensor([500.0], requires_grad=True)
    x.square().clamp(max=100).sum().backward()
    assert x.grad.item() == 0


def test_normalize_of_torch_is_not_enough():
    zero = torch.zeros(1, 4, dtype=torch.float16, requires_grad=True)
    usual = value_and_grads(torch.nn.functional.normalize, leaves([zero]))
    assert not is_finite(*usual)
    assert is_finite(*value_and_grads(sf.safe_normalize, leaves([zero])))


def test_batch_of_one_is_an_error_in_torch():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.BatchNorm1d(4)(torch.ones(1, 4))
    assert sf.SafeBatchNorm1d(4)(torch.ones(1, 4)).isfinite().all()


def test_one_bad_batch_poisons_the_statistics_of_torch_for_ever():
    usual, ours = torch.nn.BatchNorm1d(2), sf.SafeBatchNorm1d(2)
    bad, good = torch.full((4, 2), float("nan")), torch.randn(4, 2)
    for layer in (usual, ours):
        layer(bad)
        layer(good)
        layer.eval()
    assert usual(good).isnan().all()
    assert ours(good).isfinite().all()


def test_unregistered_leaf_is_never_trained():
    model = torch.nn.Linear(2, 2)
    model.extra = torch.rand(2, requires_grad=True)
    assert "extra" not in model.state_dict() and len(list(model.parameters())) == 2
    with pytest.raises(sf.init.UsageError, match="extra requires grad but is not a registered"):
        sf.finite_init_(model)


def test_epsilon_of_1e_8_is_zero_in_fp16():
    assert torch.tensor(1e-8, dtype=torch.float16) == 0
    assert torch.tensor(sf.eps_for(torch.float16), dtype=torch.float16) > 0

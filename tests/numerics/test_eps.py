import pytest
import torch
from tests.numerics.cases import DTYPES

from stayfinite.errors import UsageError
from stayfinite.numerics import eps_for
from stayfinite.numerics.eps import EXP_LIMIT, gate, hold


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("want", [1e-8, 1e-12, 1e-30, 1e-3])
def test_the_epsilon_survives_the_dtype(dtype, want):
    eps = torch.tensor(eps_for(dtype, want), dtype=dtype)
    assert eps > 0 and (1 / eps).isfinite()
    assert eps >= torch.finfo(dtype).tiny
    assert eps_for(dtype, want) >= want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("base", [1.0, -300.0, 0.01])
def test_a_relative_epsilon_is_not_absorbed(dtype, base):
    number = torch.tensor(base, dtype=dtype)
    assert number + torch.tensor(eps_for(dtype, 1e-30, relative_to=base), dtype=dtype) != number


def test_a_tensor_stands_for_its_dtype():
    assert eps_for(torch.ones(1, dtype=torch.float16)) == eps_for(torch.float16)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.int32,), "`dtype` must be a floating point dtype, got torch.int32"),
        ((torch.float32, 0.0), "`want` must be a finite number above 0, got 0.0"),
        ((torch.float16, 1e6), "whose largest number is 65504.0, got 1000000.0"),
    ],
)
def test_bad_arguments_are_named(args, message):
    with pytest.raises(UsageError, match=message):
        eps_for(*args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_limit_of_exp_is_the_last_number_that_fits(dtype):
    limit = torch.tensor(EXP_LIMIT[dtype], dtype=dtype)
    assert limit.item() == EXP_LIMIT[dtype], "the limit is a number of the dtype"
    after = (limit.double() * (1 + torch.finfo(dtype).eps)).to(dtype)
    assert after > limit
    assert limit.exp().isfinite() and after.exp().isinf()


def test_gate_drops_what_it_closes_on():
    x = torch.tensor([float("nan"), float("inf"), 2.0], requires_grad=True)
    out = gate(x, torch.tensor([0.0, -1.0, 1.0]))
    out.sum().backward()
    assert out.tolist() == [0.0, 0.0, 2.0] and x.grad.tolist() == [0.0, 0.0, 1.0]


def test_hold_keeps_nan_and_stops_the_gradient():
    x = torch.tensor([float("inf"), 3.0, 1.0], requires_grad=True)
    hold(x, 2.0).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    assert hold(torch.tensor(float("nan")), 2.0).isnan()

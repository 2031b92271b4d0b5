import math

import pytest
import torch

import stayfinite.numerics as sf
from stayfinite.errors import UsageError


def grad_of(fn, *values):
    xs = [torch.tensor(v, requires_grad=True) for v in values]
    fn(*xs).sum().backward()
    return [x.grad.tolist() for x in xs]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_log_of_zero_is_that_of_the_smallest_number(dtype):
    info = torch.finfo(dtype)
    least = math.log(info.tiny) + math.log(info.eps)
    got = sf.safe_log(torch.tensor([0.0, -0.0, -5.0], dtype=dtype))
    torch.testing.assert_close(got, torch.full((3,), least, dtype=dtype))


def test_the_log_survives_flushed_subnormals():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert sf.safe_log(torch.tensor([0.0, 1e-45])).isfinite().all()
        assert sf.safe_div(torch.tensor([1.0]), torch.tensor([1e-45])).isfinite().all()
    finally:
        torch.set_flush_denormal(False)


def test_the_derivative_at_a_pole_is_zero():
    assert grad_of(sf.safe_log, [0.0, -1.0, 2.0]) == [[0.0, 0.0, 0.5]]
    assert grad_of(sf.safe_sqrt, [0.0, -1.0, 4.0]) == [[0.0, 0.0, 0.25]]
    assert grad_of(lambda x: sf.safe_pow(x, 0.5), [0.0, -1.0, 4.0]) == [[0.0, 0.0, 0.25]]
    assert grad_of(sf.safe_asin, [1.0, -2.0, 0.0]) == [[0.0, 0.0, 1.0]]
    assert grad_of(sf.safe_acos, [1.0, -2.0, 0.0]) == [[0.0, 0.0, -1.0]]
    assert grad_of(sf.safe_atanh, [1.0, -2.0, 0.0]) == [[0.0, 0.0, 1.0]]
    assert grad_of(sf.p_log_p, [0.0, -1.0, 1.0]) == [[0.0, 0.0, 1.0]]
    assert grad_of(sf.safe_div, [1.0, 1.0], [0.0, 2.0]) == [[0.0, 0.5], [0.0, -0.25]]


def test_an_overflow_by_the_loss_scale_stays_visible():
    """A GradScaler lowers its scale only if it sees the inf."""
    x = torch.tensor([1e-4], dtype=torch.float16, requires_grad=True)
    (sf.safe_log(x).float() * 65536.0).sum().backward()
    assert x.grad.isinf()


def test_division_by_zero_gives_what_was_asked_for():
    n, d = torch.tensor([1.0, 0.0, -2.0]), torch.tensor([0.0, 0.0, 4.0])
    assert sf.safe_div(n, d, at_zero=7.0).tolist() == [7.0, 7.0, -0.5]
    assert sf.safe_div(n, 2.0).tolist() == [0.5, 0.0, -1.0]
    assert sf.safe_div(1.0, d).tolist() == [0.0, 0.0, 0.25]
    assert sf.safe_div(n[:, None], d[None]).shape == (3, 3)
    with pytest.raises(
        UsageError, match="`numerator` or `denominator` must be a tensor, got 1 and 2"
    ):
        sf.safe_div(1, 2)


def test_a_quotient_beyond_the_range_is_held():
    top = torch.finfo(torch.float32).max
    assert sf.safe_div(torch.tensor([top, -top]), 1e-3).tolist() == [top, -top]


def test_integer_powers_take_negative_numbers():
    assert sf.safe_pow(torch.tensor([-2.0]), 3).tolist() == [-8.0]
    assert grad_of(lambda x: sf.safe_pow(x, 3), [-2.0]) == [[12.0]]
    assert grad_of(lambda x: sf.safe_pow(x, 0), [0.0, 3.0]) == [[0.0, 0.0]]
    assert sf.safe_pow(torch.tensor([-2.0, -2.0]), torch.tensor([2.0, 0.5])).tolist() == [4.0, 0.0]
    assert sf.safe_pow(torch.tensor([0.0]), -1.0).tolist() == [torch.finfo(torch.float32).max]


def test_bound_lets_through_what_leads_inside():
    x = torch.tensor([9.0, -9.0, 0.0], requires_grad=True)
    sf.bound(x, -5, 5).backward(torch.tensor([1.0, -1.0, 1.0]))
    assert x.grad.tolist() == [1.0, -1.0, 1.0]
    x.grad = None
    sf.bound(x, -5, 5).backward(torch.tensor([-1.0, 1.0, -1.0]))
    assert x.grad.tolist() == [0.0, 0.0, -1.0]
    with pytest.raises(UsageError, match="`low` must be below `high`, got 1 and 1"):
        sf.bound(x, 1, 1)


def test_descent_comes_back_from_beyond_the_bound():
    x = torch.tensor([50.0], requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=1.0)
    for _ in range(40):
        optimizer.zero_grad()
        (sf.bound(x, -5.0, 5.0) - 1).square().sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.4 if abs(x.item()) < 5 else 1.0
    assert x.item() == pytest.approx(1.0, abs=0.1)


def test_integers_are_taken_and_complex_numbers_rejected():
    assert sf.safe_log(torch.tensor([1, 0])).dtype == torch.float32
    with pytest.raises(UsageError, match=r"`x` must be real, got torch.complex64"):
        sf.safe_log(torch.ones(1, dtype=torch.complex64))


@pytest.mark.parametrize("fn", [sf.safe_log, sf.safe_sqrt, sf.safe_exp, sf.p_log_p, sf.safe_acos])
def test_empty_and_scalar_tensors(fn):
    assert fn(torch.ones(0)).shape == (0,)
    assert fn(torch.tensor(0.5)).shape == ()

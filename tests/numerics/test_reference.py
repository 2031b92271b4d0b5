"""Equal to the textbook value, in units of the last place, and to its derivatives."""

import mpmath
import pytest
import torch
from tests.numerics.cases import CASES, DTYPES, edge_values, leaves, ulp_error, value_and_grads
from tests.numerics.test_finite import every_finite_number

import stayfinite.numerics as sf

MP = {
    "safe_log": (sf.safe_log, mpmath.log, lambda x: x > 0),
    "safe_sqrt": (sf.safe_sqrt, mpmath.sqrt, lambda x: x >= 0),
    "safe_exp": (sf.safe_exp, mpmath.exp, lambda x: x == x),
    "safe_pow_half": (lambda x: sf.safe_pow(x, 0.5), mpmath.sqrt, lambda x: x >= 0),
    "safe_pow_fraction": (lambda x: sf.safe_pow(x, 2.5), lambda x: x ** mpmath.mpf(2.5), lambda x: x >= 0),
    "safe_acos": (sf.safe_acos, mpmath.acos, lambda x: abs(x) <= 1),
    "safe_asin": (sf.safe_asin, mpmath.asin, lambda x: abs(x) <= 1),
    "safe_atanh": (sf.safe_atanh, mpmath.atanh, lambda x: abs(x) < 1),
    "p_log_p": (sf.p_log_p, lambda x: x * mpmath.log(x), lambda x: x > 0),
    "log1mexp": (sf.log1mexp, lambda x: mpmath.log(-mpmath.expm1(x)), lambda x: x < 0),
}  # fmt: skip
ULPS = 3.0
"""The bound that docs/NUMERICS.md states for the elementwise functions, in every dtype."""


def mp_reference(fn, numbers):
    # 400 digits: 1 - exp(-1e-308) has to keep its digits.
    with mpmath.workdps(400):
        return [fn(mpmath.mpf(x)) for x in numbers]


def mp_ulps(got, want, dtype):
    """The error in units of the last place, exactly; None where the reference is out of range."""
    info = torch.finfo(dtype)
    with mpmath.workdps(60):
        if abs(want) > info.max:
            return None
        exponent = mpmath.frexp(want)[1] if want else -100000
        unit = max(mpmath.ldexp(info.eps, exponent - 1), mpmath.mpf(info.tiny) * info.eps)
        return float(abs(mpmath.mpf(got) - want) / unit)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MP)
def test_elementwise_functions_against_mpmath(name, dtype):
    ours, exact, is_inside = MP[name]
    spread = torch.logspace(-12, 2, 15, dtype=torch.float64)
    numbers = torch.cat([torch.tensor(edge_values(dtype), dtype=torch.float64), spread, -spread])
    x = numbers.to(dtype)
    x = x[torch.tensor([bool(is_inside(v)) for v in x.double().tolist()])]
    got = ours(x).double().tolist()
    points = x.double().tolist()
    errors = [mp_ulps(g, w, dtype) for g, w in zip(got, mp_reference(exact, points))]
    worst = max((e, p) for e, p in zip(errors, points) if e is not None)
    assert worst[0] <= ULPS, f"{worst[0]} ulps at {worst[1]}"
    assert sum(e is not None for e in errors) >= 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [c for c in CASES if c.is_elementwise and len(c.sample()) == 1 and c.name != "log1mexp"], ids=str)  # fmt: skip
def test_every_number_of_half_precision_against_fp64(case, dtype):
    """Wherever the textbook value fits into the dtype; the derivative wherever it does too."""
    x = every_finite_number(dtype)
    value, (grad,) = value_and_grads(case.fn, leaves([x]))
    wide = x.double().requires_grad_()
    want = case.expected(wide)
    (slope,) = torch.autograd.grad(want.sum(), wide)
    top = torch.finfo(dtype).max
    fits = want.isfinite() & (want.abs() <= top)
    assert ulp_error(value[fits], want[fits].detach(), dtype) <= ULPS
    smooth = fits & slope.isfinite() & (slope.abs() < top) & (x.abs() > torch.finfo(dtype).tiny)
    if case.name == "bound":  # beyond the limits its gradient differs, which is its purpose
        smooth &= x.abs() < 3
    # Kernels may flush a derivative below the smallest normal number to zero.
    smooth &= slope.abs() > 8 * torch.finfo(dtype).tiny
    assert smooth.sum() > 1000
    weight = torch.arange(len(x), dtype=torch.float64).cos().to(dtype).double()
    size = max(case.grad_size, torch.finfo(dtype).tiny)
    error = ulp_error(grad[smooth], (slope * weight)[smooth], dtype, size)
    assert error <= case.grad_ulps


def norm_error(got, want, dtype):
    """The largest error against the largest entry, in units of the last place."""
    info = torch.finfo(dtype)
    error = (got.double() - want.double()).abs().max()
    return float(error / (want.double().abs().max() * info.eps + info.tiny))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_to_the_textbook_in_fp64(case, dtype):
    torch.manual_seed(1)
    for _ in range(3):
        inputs = [x.to(dtype) for x in case.sample()]
        value, grads = value_and_grads(case.fn, leaves(inputs))
        want, slopes = value_and_grads(case.expected, leaves([x.double() for x in inputs]))
        # The fp64 reference is a textbook formula itself, with the rounding errors of one.
        slack = 16 if dtype == torch.float64 else 1
        assert ulp_error(value, want, value.dtype, case.size) <= case.ulps * slack
        for grad, slope in zip(grads, slopes):
            assert norm_error(grad, slope, dtype) <= case.grad_ulps * slack


def trained(case):
    inputs = leaves(case.sample())
    count = len(inputs) if case.num_trained is None else case.num_trained
    return [x if i < count else x.detach() for i, x in enumerate(inputs)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck(case):
    torch.manual_seed(2)
    assert torch.autograd.gradcheck(case.fn, trained(case), fast_mode=True)


@pytest.mark.parametrize("case", [c for c in CASES if c.has_second], ids=str)
def test_gradgradcheck(case):
    torch.manual_seed(3)
    assert torch.autograd.gradgradcheck(case.fn, trained(case), fast_mode=True)


def test_what_has_no_second_derivative_is_torchs_own_kernel():
    assert [c.name for c in CASES if not c.has_second] == ["ctc_loss"]

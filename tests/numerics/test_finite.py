"""Value and gradient are finite for every finite input of every float dtype."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.numerics.cases import CASES, DTYPES, ELEMENTWISE, edge_values, leaves, value_and_grads

NUM_EXAMPLES = 6


def assert_finite(case, inputs):
    value, grads = value_and_grads(case.fn, leaves(inputs))
    assert value.isfinite().all(), f"{case}: value {value} for {inputs}"
    for i, grad in enumerate(grads):
        assert grad.isfinite().all(), f"{case}: gradient {grad} of input {i} for {inputs}"


@st.composite
def extreme_tensors(draw, case, dtype):
    """Tensors of edge values, ordinary numbers and numbers of any exponent, mixed."""
    info = torch.finfo(dtype)
    any_size = st.builds(
        lambda sign, exponent: sign * 2.0**exponent,
        st.sampled_from([-1.0, 1.0]),
        st.integers(math.frexp(info.tiny)[1] - 4, math.frexp(info.max)[1] - 1),
    )
    edges = edge_values(dtype) + ([-math.inf] * 8 if case.allows_neg_inf else [])
    number = st.sampled_from(edges) | any_size | st.floats(-4, 4)
    # A few values in many places: ties, equal rows and all-masked rows become likely.
    pool = draw(st.lists(number, min_size=1, max_size=6))
    tensors = []
    for sample in case.sample():
        picks = draw(
            st.lists(st.sampled_from(pool), min_size=sample.numel(), max_size=sample.numel())
        )
        tensors.append(torch.tensor(picks, dtype=torch.float64).reshape(sample.shape).to(dtype))
    return case.extreme(tensors) if case.extreme else tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradient_are_finite_at_the_extremes(case, dtype):
    @settings(max_examples=NUM_EXAMPLES)
    @given(extreme_tensors(case, dtype))
    def check(inputs):
        assert_finite(case, inputs)

    check()


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_and_gradient_are_finite_at_many_more_extremes(case):
    for dtype in DTYPES:

        @settings(max_examples=20, derandomize=False)
        @given(extreme_tensors(case, dtype))
        def check(inputs):
            assert_finite(case, inputs)

        check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ELEMENTWISE, ids=str)
def test_every_combination_of_edge_values(case, dtype):
    edges = torch.tensor(edge_values(dtype), dtype=torch.float64).to(dtype)
    num_inputs = len(case.sample())
    inputs = [edges] if num_inputs == 1 else list(torch.cartesian_prod(edges, edges).unbind(1))
    assert_finite(case, inputs)


def every_finite_number(dtype):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(dtype)
    return numbers[numbers.isfinite()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [c for c in ELEMENTWISE if len(c.sample()) == 1], ids=str)
def test_every_number_of_half_precision(case, dtype):
    assert_finite(case, [every_finite_number(dtype)])


@pytest.mark.parametrize("case", [c for c in CASES if c.name != "temi_loss"], ids=str)
def test_nan_is_not_hidden(case):
    inputs = [x.float() for x in case.sample()]
    inputs[0].view(-1)[0] = math.nan
    if case.name == "ctc_loss":  # its first sample is left out as infeasible
        inputs[0][:, 1] = math.nan
    if case.name == "focal_loss" or "cross_entropy" in case.name:
        inputs[0][0] = math.nan
    assert value_and_grads(case.fn, leaves(inputs))[0].isnan().any()

"""What can fail is found with its condition; the correct form beside it is proved safe."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.foresee.judging import failing, judged, statuses

ANY = (-5.0, 5.0)
POSITIVE = (0.0, 5.0)
MASK = torch.tensor([[True, False, True]] * 4)
LABELS = torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("f", "ranges", "op", "condition"),
    [
        (lambda x: x.log(), {"x": (0.0, 1.0)}, "aten.log", "x reaches 0"),
        (lambda x: (x - 1).log(), {"x": (0.5, 4.0)}, "aten.log", "the argument of log is below 0"),
        (lambda x: x.sqrt(), {"x": (-1.0, 4.0)}, "aten.sqrt", "x is negative"),
        (lambda x: x / x.sum(-1, keepdim=True), {"x": POSITIVE}, "aten.div", "the sum of x is 0"),
        (lambda x: x / x.norm(dim=-1, keepdim=True), {"x": ANY}, "aten.div", "the norm of x is 0"),
        (
            lambda x: (x * 40).exp(),
            {"x": ANY},
            "aten.exp",
            "40 times x is large enough for exp to overflow",
        ),
        (lambda x: x.acos(), {"x": (-1.1, 1.0)}, "aten.acos", "x is beyond -1 or 1"),
        (
            lambda x: 1 / x.std(-1),
            {"x": ANY},
            "aten.reciprocal",
            "the standard deviation of x is 0",
        ),
        (lambda x: torch.rand_like(x).log(), {"x": ANY}, "aten.log", "the random number reaches 0"),
        (lambda x: x.pow(-2), {"x": ANY}, "aten.pow", "x is 0 under the power -2"),
    ],
)
def test_what_can_fail_is_reported_with_its_condition(f, ranges, op, condition):
    assert failing(judged(f, ranges)) == {op: condition}


@pytest.mark.parametrize(
    ("f", "ranges"),
    [
        (lambda x: x.clamp(min=1e-6).log(), {"x": (0.0, 1.0)}),
        (lambda x: F.logsigmoid(x), {"x": (-1e4, 1e4)}),
        (lambda x: x / (x.sum(-1, keepdim=True) + 1e-6), {"x": POSITIVE}),
        (lambda x: F.normalize(x, dim=-1), {"x": ANY}),
        (lambda x: (x - x.amax(-1, keepdim=True)).exp(), {"x": (-1e4, 1e4)}),
        (lambda x: x.softmax(-1).clamp(min=1e-9).log(), {"x": (-1e4, 1e4)}),
        (lambda x: x.log_softmax(-1), {"x": (-1e4, 1e4)}),
        (lambda x: torch.logsumexp(x, -1), {"x": (-1e4, 1e4)}),
        (lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6), {"x": (-1e4, 1e4)}),
        (lambda x: (x.var(-1, unbiased=False) + 1e-5).sqrt(), {"x": ANY}),
        (lambda x: F.layer_norm(x, (3,)), {"x": (-1e6, 1e6)}),
        (lambda x: torch.where(x > 0, x, 1.0).log(), {"x": ANY}),
        (lambda x: x.acos(), {"x": (-1.0, 1.0)}),
        (lambda x: x[:, :2].reshape(-1).square().sum().sqrt(), {"x": ANY}),
    ],
)
def test_the_correct_form_is_proved_safe(f, ranges):
    assert statuses(judged(f, ranges)) == {"safe"}


def hand_made_softmax(x):
    e = (x - x.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def test_a_softmax_by_hand_with_the_maximum_subtracted_is_safe_and_without_it_is_not():
    assert statuses(judged(hand_made_softmax, {"x": (-500.0, 500.0)})) == {"safe"}
    found = failing(
        judged(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), {"x": (-500.0, 500.0)})
    )
    assert set(found) == {"aten.exp", "aten.div"} or set(found) == {"aten.exp"}


def test_the_maximum_over_another_dimension_proves_nothing():
    x = torch.rand(3, 3)
    found = judged(lambda x: (x - x.amax(0)).exp(), {"x": (-500.0, 500.0)}, x=x)
    assert statuses(found) == {"safe"}  # along dimension 0 it is laid beside the right one
    found = judged(lambda x: (x - x.amax(1)).exp(), {"x": (-500.0, 500.0)}, x=x.clone())
    assert "aten.exp" in failing(found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_epsilon_that_half_precision_rounds_away_does_not_help(dtype):
    def f(x):
        return x / (x.sum(-1, keepdim=True) + 1e-8)

    assert statuses(judged(f, {"x": POSITIVE})) == {"safe"}
    found = failing(judged(f, {"x": POSITIVE}, dtype=torch.float16))
    assert found == {"aten.div": "the sum of x + 1e-08 is 0"}


def test_a_cast_of_data_beyond_the_limit_of_float16():
    found = failing(judged(lambda x: x.half(), {"x": (0.0, 1e5)}))
    assert found == {"aten._to_copy": "x is beyond 65504, the limit of float16"}
    assert statuses(judged(lambda x: x.half(), {"x": (0.0, 6e4)})) == {"safe"}


def test_a_mask_that_can_be_empty():
    ranges = {"x": ANY, "mask": (0.0, 1.0)}
    found = judged(lambda x, mask: (x * mask).sum() / mask.sum(), ranges, mask=MASK)
    assert failing(found) == {"aten.div": "the sum of mask is 0"}
    assert next(v for v in found if v.status == "can_fail").parts == ("mask", "x")
    safe = judged(lambda x, mask: (x * mask).sum() / mask.sum().clamp(min=1), ranges, mask=MASK)
    assert statuses(safe) == {"safe"}
    found = judged(lambda x, mask: x[mask].mean(), ranges, mask=MASK)
    assert failing(found) == {"aten.mean": "mask selects nothing"}


def test_a_row_that_can_be_masked_as_a_whole():
    ranges = {"x": ANY, "mask": (0.0, 1.0)}
    found = judged(lambda x, mask: x.masked_fill(mask, -math.inf).softmax(-1), ranges, mask=MASK)
    assert failing(found) == {"aten._softmax": "every entry of a row is masked (-inf)"}
    causal = torch.ones(4, 3).triu(1).bool()
    found = judged(lambda x: x.masked_fill(causal, -math.inf).softmax(-1), {"x": ANY})
    assert not failing(found)


def test_labels_that_can_all_be_ignored():
    def f(x, y):
        return F.cross_entropy(x, y, ignore_index=-100)

    found = failing(judged(f, {"x": ANY, "y": (-100.0, 2.0)}, y=LABELS))
    assert found == {"aten.nll_loss_forward": "every one of y is ignored (-100)"}
    assert not failing(judged(f, {"x": ANY, "y": (0.0, 2.0)}, y=LABELS))


def test_a_derivative_that_is_infinite_is_a_division_in_the_backward():
    found = judged(lambda x: x.square().sum(-1).sqrt(), {"x": ANY}, backward=True)
    assert set(failing(found)) == {"SqrtBackward0"}
    assert {v.operation.phase for v in found if v.status == "can_fail"} == {"backward"}
    safe = judged(lambda x: (x.square().sum(-1) + 1e-6).sqrt(), {"x": ANY}, backward=True)
    assert statuses(safe) == {"safe"}


def test_a_branch_that_where_throws_away_comes_back_in_the_backward():
    found = judged(lambda x: torch.where(x > 0, x.sqrt(), 0.0), {"x": (0.0, 4.0)}, backward=True)
    assert set(failing(found)) == {"SqrtBackward0"}


def test_a_variance_over_a_batch_of_one():
    def f(x):
        return x.var(0)

    assert not failing(judged(f, {"x": ANY}, sizes=(4,)))
    assert failing(judged(f, {"x": ANY}, sizes=(4, 1))) == {"aten.var": "the batch has 1 row(s)"}


def test_memory_that_is_read_before_it_is_written():
    def f(x, i):
        return torch.empty(3).index_put((i,), x[0]) * 2

    index = torch.tensor([0, 1, 2])
    found = failing(judged(f, {"x": ANY, "i": (0.0, 2.0)}, i=index))
    assert list(found) == ["aten.empty"]
    assert found["aten.empty"].startswith("aten.mul reads elements that were never written (line ")
    assert not failing(judged(lambda x: torch.empty_like(x).copy_(x) * 2, {"x": ANY}))


def test_an_operator_without_a_model_is_unknown_and_so_is_what_follows():
    found = judged(lambda x: torch.special.i0(x).exp() + 1, {"x": (0.0, 1.0)})
    assert [v.status for v in found] == ["unknown", "unknown", "unknown"]
    assert found[0].condition == "aten.i0 is not modeled"
    assert found[1].after == found[0].operation.index


def test_what_follows_an_operator_that_can_fail_is_not_called_safe():
    found = judged(lambda x: x.log().sigmoid(), {"x": (0.0, 1.0)})
    assert [v.status for v in found] == ["can_fail", "unknown"]
    assert found[1].condition.startswith("it is given what aten.log makes")


def test_views_and_writes_in_place_are_followed():
    def f(x):
        y = torch.ones_like(x)
        y.t()[0].copy_(x[:, 0])
        return y.log()

    assert failing(judged(f, {"x": (0.0, 1.0)})) == {"aten.log": "the argument of log reaches 0"}
    assert not failing(judged(f, {"x": (0.5, 1.0)}))


def test_a_number_that_python_reads_keeps_its_range():
    ranges = {"x": ANY, "mask": (0.0, 1.0)}
    found = judged(lambda x, mask: x.sum() / mask.sum().item(), ranges, mask=MASK)
    assert failing(found) == {"aten.div": "the sum of mask is 0"}


def test_a_wide_range_that_was_never_nearly_reached_is_unknown_and_not_a_claim():
    def deep(x):
        for _ in range(12):
            x = x @ torch.full((3, 3), 1000.0) - x @ torch.full((3, 3), 1000.0) + x
        return x.exp()

    found = judged(deep, {"x": (-1.0, 1.0)})
    assert "can_fail" not in statuses(found)
    assert found[-1].status == "unknown"


@pytest.mark.parametrize(
    ("f", "range_", "dtype"),
    [
        (torch.sigmoid, (-100.0, -90.0), torch.float32),
        (torch.special.ndtr, (-7.0, -6.0), torch.float32),
        (torch.special.ndtr, (-3.5, -3.25), torch.bfloat16),
        (torch.erf, (1e-30, 1e-20), torch.bfloat16),
    ],
)
def test_what_a_kernel_gives_as_zero_is_no_safe_denominator(f, range_, dtype):
    assert not f(torch.full((32,), range_[0], dtype=dtype)).any()
    assert "aten.reciprocal" in failing(judged(lambda x: f(x).reciprocal(), {"x": range_}, dtype))
    assert statuses(judged(lambda x: 1.0 / (f(x) + 1e-2), {"x": range_}, dtype)) == {"safe"}

import math

import pytest
import torch

import stayfinite.numerics as sf
from stayfinite.errors import UsageError

NAN, INF = math.nan, math.inf


def test_what_is_masked_out_does_not_leak():
    x = torch.tensor([[1.0, NAN, INF, -INF, 3.0]], requires_grad=True)
    mask = torch.tensor([[True, False, False, False, True]])
    for fn, want in ((sf.masked_sum, 4.0), (sf.masked_mean, 2.0)):
        x.grad = None
        out = fn(x, mask, -1)
        out.sum().backward()
        assert out.item() == want
        assert x.grad.isfinite().all() and not x.grad[0, 1:4].any()


@pytest.mark.parametrize("fn", [sf.masked_softmax, sf.masked_log_softmax, sf.masked_logsumexp])
def test_nan_that_is_masked_out_does_not_leak_into_softmax(fn):
    x = torch.tensor([[1.0, NAN, INF, 3.0]], requires_grad=True)
    mask = torch.tensor([[True, False, False, True]])
    out = fn(x, mask)
    kept = fn(x[:, [0, 3]].detach())
    torch.testing.assert_close(out if out.ndim == 1 else out[:, [0, 3]], kept)
    out[..., 0].sum().backward()
    assert x.grad.isfinite().all() and not x.grad[0, 1:3].any()


def test_an_empty_row_gives_the_stated_value_and_no_gradient():
    x = torch.randn(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    values = {
        sf.masked_sum(x, mask, -1): 0.0,
        sf.masked_mean(x, mask, -1): 0.0,
        sf.masked_mean(x, mask, -1, empty=-1.0): -1.0,
        sf.masked_softmax(x, mask): 0.0,
        sf.masked_log_softmax(x, mask): torch.finfo(torch.float32).min,
        sf.masked_log_softmax(x, mask, masked_value=-9.0): -9.0,
        sf.masked_logsumexp(x, mask): torch.finfo(torch.float32).min,
        sf.masked_logsumexp(x, mask, empty=2.0): 2.0,
    }
    for out, want in values.items():
        assert (out == want).all()
        (grad,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        assert not grad.any()


def test_an_additive_mask_works_too():
    x = torch.tensor([[0.0, -INF, 0.0], [-INF, -INF, -INF]], requires_grad=True)
    out = sf.masked_softmax(x)
    assert out.tolist() == [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert sf.masked_log_softmax(x, masked_value=-7.0)[1].tolist() == [-7.0] * 3


def test_a_low_live_entry_still_wins_over_the_masked():
    """A fill of the lowest finite number would share the row with it."""
    x = torch.tensor([torch.finfo(torch.float32).min, 0.0])
    assert sf.masked_softmax(x, torch.tensor([True, False])).tolist() == [1.0, 0.0]


def test_half_precision_sums_accumulate_in_fp32():
    x = torch.full((4096,), 32.0, dtype=torch.float16)
    assert x.sum().isinf()
    assert sf.masked_sum(x).item() == torch.finfo(torch.float16).max
    assert sf.masked_mean(x).item() == 32.0
    large = torch.full((3,), torch.finfo(torch.float32).max)
    assert large.mean().isinf() and sf.masked_mean(large).item() == large[0].item()


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_dimensions_are_those_of_torch(dim, keepdim):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(sf.masked_sum(x, dim=dim, keepdim=keepdim), x.sum(dim, keepdim=keepdim) if dim is not None else x.sum() if not keepdim else x.sum((0, 1, 2), keepdim=True))  # fmt: skip
    mask = torch.rand(2, 3, 4) > 0.5
    mask[0, 0, 0] = True
    dims = (0, 1, 2) if dim is None else dim
    want = (x * mask).sum(dims, keepdim=keepdim) / mask.sum(dims, keepdim=keepdim)
    got = sf.masked_mean(x, mask, dim, keepdim=keepdim)
    torch.testing.assert_close(got, want.nan_to_num(0.0))


def test_masks_broadcast():
    x = torch.ones(2, 3, 4)
    assert sf.masked_sum(x, torch.tensor([True, False, True])[:, None]).item() == 16
    assert sf.masked_softmax(x, torch.tensor([True, True, False, False])).sum().item() == 6


def test_empty_tensors_and_scalars():
    assert sf.masked_mean(torch.ones(0)).item() == 0
    assert sf.masked_mean(torch.ones(0), empty=3.0).item() == 3
    assert sf.masked_sum(torch.ones(2, 0), dim=-1).tolist() == [0.0, 0.0]
    assert sf.masked_mean(torch.tensor(4.0)).item() == 4
    assert sf.masked_mean(torch.tensor(4.0), torch.tensor(False)).item() == 0


def test_a_mask_of_numbers_is_rejected():
    with pytest.raises(UsageError, match=r"`mask` must be a bool tensor.*got torch.float32"):
        sf.masked_mean(torch.ones(2), torch.ones(2))

import pytest
import torch
import torch.nn.functional as F

import stayfinite.numerics as sf
from stayfinite.errors import UsageError


def qkv(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 3, 5, 8, dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_equal_to_the_attention_of_torch(is_causal, scale):
    q, k, v = qkv()
    want = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    torch.testing.assert_close(sf.stable_attention(q, k, v, is_causal=is_causal, scale=scale), want)


def test_masks_of_both_kinds():
    q, k, v = qkv()
    allowed = torch.rand(5, 5) > 0.4
    allowed.fill_diagonal_(True)
    want = F.scaled_dot_product_attention(q, k, v, allowed)
    additive = torch.zeros(5, 5).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(sf.stable_attention(q, k, v, allowed), want)
    torch.testing.assert_close(sf.stable_attention(q, k, v, additive), want)
    both = sf.stable_attention(q, k, v, allowed, is_causal=True)
    torch.testing.assert_close(both, F.scaled_dot_product_attention(q, k, v, allowed & torch.ones(5, 5).tril().bool()))  # fmt: skip


@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_a_query_that_may_attend_to_nothing(kind):
    q, k, v = qkv()
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    if kind == "additive":
        mask = torch.zeros(5, 5).masked_fill(~mask, -torch.inf)
    out = sf.stable_attention(q, k, v, mask)
    out.sum().backward()
    assert not out[..., 2, :].any() and not q.grad[..., 2, :].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_scores_beyond_fp16():
    q = torch.full((1, 2, 64), 300.0, dtype=torch.float16)
    assert (q @ q.mT).isinf().all(), "what the usual formula makes before it scales"
    with torch.autocast("cpu", dtype=torch.float16):
        assert sf.stable_attention(q, q, q).isfinite().all()


def test_dropout_drops():
    q, k, v = qkv()
    assert not torch.equal(
        sf.stable_attention(q, k, v, dropout_p=0.5), sf.stable_attention(q, k, v)
    )
    with pytest.raises(UsageError, match="`dropout_p` must be at least 0 and below 1, got 1"):
        sf.stable_attention(q, k, v, dropout_p=1)

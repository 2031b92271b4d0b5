import pytest
import torch

import stayfinite.numerics as sf


def test_the_zero_vector_has_no_direction_and_no_gradient():
    x = torch.zeros(2, 3, requires_grad=True)
    for fn in (sf.safe_norm, sf.safe_normalize, lambda x: sf.cosine_similarity(x, x + 0)):
        out = fn(x)
        assert not out.any()
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert not grad.any()


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-3, 1e20, 8e37])
def test_any_scale_is_as_good_as_another(scale):
    x = torch.tensor([[3.0, 4.0]]) * scale
    assert sf.safe_norm(x).item() == pytest.approx(min(5 * scale, 3.4028235e38), rel=0.1 if scale < 1e-40 else 1e-6)  # fmt: skip
    torch.testing.assert_close(sf.safe_normalize(x), torch.tensor([[0.6, 0.8]]), rtol=0.1 if scale < 1e-40 else 1e-6, atol=1e-6)  # fmt: skip
    assert sf.safe_std(x).item() == pytest.approx(0.5**0.5 * scale, rel=0.5 if scale < 1e-40 else 1e-6)  # fmt: skip


def test_one_element_has_no_variance():
    x = torch.ones(3, 1, requires_grad=True)
    for fn in (sf.safe_var, sf.safe_std):
        out = fn(x)
        assert out.tolist() == [0.0] * 3
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert not grad.any()
    assert sf.safe_var(torch.ones(2, 0)).tolist() == [0.0, 0.0]
    assert sf.safe_std(torch.tensor(3.0)).item() == 0


@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_spread_is_that_of_torch(correction, dim):
    x = torch.randn(5, 6, 7, dtype=torch.float64)
    torch.testing.assert_close(sf.safe_var(x, dim, correction=correction), x.var(dim, correction=correction))  # fmt: skip
    torch.testing.assert_close(sf.safe_std(x, dim, correction=correction, keepdim=True), x.std(dim, correction=correction, keepdim=True))  # fmt: skip


def test_a_small_spread_at_a_large_offset_has_its_gradient():
    """The square of the offset overflows, the variance does not."""
    x = torch.tensor([1e22, 1.00001e22], requires_grad=True)
    sf.safe_var(x).backward()
    want = x.detach() - x.detach().double().mean().float()
    torch.testing.assert_close(x.grad, 2 * want)


def test_distance_to_itself():
    x = torch.randn(4, 3, requires_grad=True)
    sf.pairwise_distance(x).sum().backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(sf.pairwise_distance(x), torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"))  # fmt: skip


def test_cosines_stay_within_one():
    x = torch.randn(2000, 7)
    cosine = sf.cosine_similarity(x, 3 * x)
    assert (cosine <= 1).all() and (cosine > 0.999999).all()
    assert sf.safe_acos(cosine).isfinite().all()

import math

import torch

import stayfinite.numerics as sf

INF = math.inf


def test_one_minus_exp_keeps_its_digits_at_both_ends():
    got = sf.log1mexp(torch.tensor([-1e-30, -1e-10, -math.log(2), -50.0, -100.0, 0.0, 3.0]))
    want = torch.tensor(
        [-69.0776, -23.0259, -0.6931, -1.9287e-22, -3.7835e-44, -103.2789, -103.2789]
    )
    torch.testing.assert_close(got, want, rtol=1e-4, atol=3e-45)


def test_at_the_very_switch_of_formulas():
    x = torch.tensor([-math.log(2)], dtype=torch.float32)
    near = torch.stack([x, x.nextafter(torch.tensor(0.0)), x.nextafter(torch.tensor(-1.0))])
    torch.testing.assert_close(sf.log1mexp(near), (-near.double().expm1()).log().float())


def test_logaddexp_with_masks():
    a = torch.tensor([-INF, -INF, 1.0, 200.0], requires_grad=True)
    b = torch.tensor([-INF, 2.0, 1.0, -200.0], requires_grad=True)
    out = sf.safe_logaddexp(a, b)
    out.sum().backward()
    lowest = torch.finfo(torch.float32).min
    torch.testing.assert_close(out, torch.tensor([lowest, 2.0, 1 + math.log(2), 200.0]))
    assert a.grad.tolist() == [0.0, 0.0, 0.5, 1.0] and b.grad.tolist() == [0.0, 1.0, 0.5, 0.0]


def test_logaddexp_shares_the_gradient_of_large_equal_numbers():
    """exp(a - result) would give 1 to both: the result is 1e9 as well."""
    a = torch.tensor([1e9], requires_grad=True)
    b = torch.tensor([1e9], requires_grad=True)
    assert [g.item() for g in torch.autograd.grad(sf.safe_logaddexp(a, b), (a, b))] == [0.5, 0.5]


def test_mixture_leaves_impossible_components_out():
    logits = torch.tensor([[0.0, -INF], [0.0, 0.0], [-INF, -INF]], requires_grad=True)
    log_probs = torch.tensor([[-3.0, 5.0], [-INF, -INF], [1.0, 1.0]], requires_grad=True)
    out = sf.log_mixture(logits, log_probs)
    lowest = torch.finfo(torch.float32).min
    assert out[0].item() == -3 and out[1].item() == lowest
    out.sum().backward()
    assert logits.grad.isfinite().all() and log_probs.grad.isfinite().all()
    assert not log_probs.grad[1].any() and log_probs.grad[0].tolist() == [1.0, 0.0]

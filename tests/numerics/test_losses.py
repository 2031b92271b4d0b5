import math

import pytest
import torch
import torch.nn.functional as F

import stayfinite.numerics as sf
from stayfinite.errors import UsageError

INF = math.inf


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3, 2)])
def test_cross_entropy_is_that_of_torch(smoothing, has_weight, reduction, shape):
    x = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(0, 5, (shape[0], *shape[2:]))
    target.view(-1)[1] = -100
    weight = torch.rand(5, dtype=torch.float64) if has_weight else None
    want = F.cross_entropy(x, target, weight, label_smoothing=smoothing, reduction=reduction)
    for fn in (sf.masked_cross_entropy, lambda *a, **k: sf.focal_loss(*a, gamma=0.0, **k)):
        got = fn(x, target, weight=weight, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(got, want)


def test_all_ignored_is_zero_or_an_error():
    x = torch.randn(3, 4, requires_grad=True)
    target = torch.full((3,), -100)
    loss = sf.masked_cross_entropy(x, target)
    loss.backward()
    assert loss.item() == 0 and not x.grad.any()
    with pytest.raises(UsageError, match="all 3 targets are ignore_index=-100\ntry: drop"):
        sf.masked_cross_entropy(x, target, on_empty="raise")
    assert sf.masked_cross_entropy(x, torch.tensor([0, -100, 1]), on_empty="raise") > 0
    with pytest.raises(UsageError, match="`on_empty` must be one of zero, raise, got 'skip'"):
        sf.masked_cross_entropy(x, target, on_empty="skip")
    with pytest.raises(UsageError, match="`reduction` must be one of mean, sum, none, got 'avg'"):
        sf.masked_cross_entropy(x, target, reduction="avg")


def test_smoothing_leaves_masked_classes_out():
    x = torch.tensor([[1.0, 2.0, -INF]], requires_grad=True)
    target = torch.tensor([0])
    assert F.cross_entropy(x, target, label_smoothing=0.1).isinf()
    got = sf.masked_cross_entropy(x, target, label_smoothing=0.1)
    torch.testing.assert_close(got, F.cross_entropy(x[:, :2], target, label_smoothing=0.1))
    got.backward()
    assert x.grad.isfinite().all()


def test_a_masked_target_counts_as_the_smallest_probability():
    x = torch.tensor([[1.0, -INF]], requires_grad=True)
    loss = sf.masked_cross_entropy(x, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(103.2789) and not x.grad.any()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("logit", [-300.0, -20.0, -1.0, 0.0, 1.0, 20.0, 300.0])
def test_the_gradient_of_the_focal_loss_is_right_from_p_0_to_p_1(gamma, logit):
    """Against the derivative in closed form, evaluated with 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    x = torch.tensor([[logit, 0.0]], requires_grad=True)
    sf.focal_loss(x, torch.tensor([0]), gamma=gamma).backward()
    b = torch.tensor([logit], requires_grad=True)
    sf.binary_focal_loss(b, torch.ones(1), gamma=gamma).backward()
    with mpmath.workdps(200):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(logit)))
        want = float((1 - p) ** gamma * (gamma * p * mpmath.log(p) - (1 - p)))
    assert b.grad.item() == pytest.approx(want, rel=1e-5, abs=1e-37)
    assert x.grad[0, 0].item() == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_binary_focal_loss_has_the_usual_special_cases():
    x, target = torch.randn(50), torch.rand(50)
    torch.testing.assert_close(
        sf.binary_focal_loss(x, target, gamma=0.0), F.binary_cross_entropy_with_logits(x, target)
    )
    smooth = sf.binary_focal_loss(x, (target > 0.5).float(), gamma=0.0, label_smoothing=0.2)
    want = F.binary_cross_entropy_with_logits(x, (target > 0.5).float() * 0.8 + 0.1)
    torch.testing.assert_close(smooth, want)
    only_yes = sf.binary_focal_loss(x, torch.ones(50), alpha=0.25)
    torch.testing.assert_close(only_yes, 0.25 * sf.binary_focal_loss(x, torch.ones(50)))


@pytest.mark.parametrize("gamma", [-1.0, math.nan, INF])
def test_a_bad_gamma_is_named(gamma):
    with pytest.raises(UsageError, match="`gamma` must be a finite number of at least 0"):
        sf.binary_focal_loss(torch.ones(1), torch.ones(1), gamma=gamma)


def test_bpr_in_half_precision_is_returned_in_fp32():
    score = torch.tensor([-6e4], dtype=torch.float16, requires_grad=True)
    loss = sf.bpr_loss(score, -score)
    loss.backward()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(12e4, rel=1e-3)
    assert score.grad.item() == -2


def test_temi_leaves_a_bad_head_out_and_names_it():
    torch.manual_seed(0)
    s1, s2, t1, t2 = (torch.randn(3, 6, 4).requires_grad_() for _ in range(4))
    marginal = torch.full((3, 4), 0.25)
    bad = s1.detach().clone()
    bad[1, 0, 0] = math.nan
    bad.requires_grad_()
    out = sf.temi_loss((bad, s2), (t1, t2), marginal)
    assert out.is_skipped.tolist() == [False, True, False]
    keep = [0, 2]
    want = sf.temi_loss((s1[keep], s2[keep]), (t1[keep], t2[keep]), marginal[keep])
    torch.testing.assert_close(out.loss, want.loss)
    out.loss.backward()
    assert bad.grad.isfinite().all() and not bad.grad[1].any() and bad.grad[0].any()
    assert t1.grad is None or not t1.grad.any(), "the teacher gets no gradient"


def test_temi_with_no_head_left_or_no_weight_left():
    nan = torch.full((2, 3, 4), math.nan, requires_grad=True)
    out = sf.temi_loss((nan, nan), (nan, nan), torch.full((2, 4), 0.25))
    out.loss.backward()
    assert out.loss.item() == 0 and not nan.grad.any()
    # Teachers that never agree: the weights are all 0, and become uniform.
    s = torch.randn(1, 2, 2, requires_grad=True)
    one, two = torch.tensor([[[9e9, 0.0]] * 2]), torch.tensor([[[0.0, 9e9]] * 2])
    loss = sf.temi_loss((s, s), (one, two), torch.full((1, 2), 0.5)).loss
    loss.backward()
    assert loss.item() != 0 and s.grad.isfinite().all()


def test_a_temperature_is_kept_at_its_floor_and_can_come_back():
    q = torch.randn(8, 4)
    t = torch.tensor(1e-6, requires_grad=True)
    loss = sf.info_nce(q, torch.randn(8, 4), temperature=t, min_temperature=0.04)
    loss.backward()
    assert loss.isfinite() and t.grad < 0, "descent raises it"
    with pytest.raises(UsageError, match="`min_temperature` must be above 0, got 0"):
        sf.info_nce(q, q, min_temperature=0)
    with pytest.raises(UsageError, match="`teacher_temperature` must be a finite number above 0"):
        sf.temi_loss((q[None],) * 2, (q[None],) * 2, torch.ones(1, 4), teacher_temperature=0)


def test_info_nce_symmetric_is_the_mean_of_both_ways():
    q, k = torch.randn(5, 3), torch.randn(5, 3)
    both = 0.5 * (sf.info_nce(q, k) + sf.info_nce(k, q))
    torch.testing.assert_close(sf.info_nce(q, k, is_symmetric=True), both)


def test_a_runaway_log_variance_can_come_back():
    for start in (50.0, -50.0):
        lv = torch.tensor([start], requires_grad=True)
        sf.gaussian_kl(torch.zeros(1), lv).backward()
        assert math.copysign(1, lv.grad.item()) == math.copysign(1, start)
    lv = torch.tensor([-50.0], requires_grad=True)
    sf.gaussian_nll(torch.zeros(1), torch.ones(1), lv).backward()
    assert lv.grad.item() < 0, "a variance too small for the error grows"
    with pytest.raises(UsageError, match="`log_var_bounds` must be"):
        sf.gaussian_kl(torch.zeros(1), lv, log_var_bounds=(1, -1))


def test_gaussian_nll_is_that_of_torch():
    mean, target, lv = (torch.randn(20, dtype=torch.float64) for _ in range(3))
    got = sf.gaussian_nll(mean, target, lv, full=True)
    torch.testing.assert_close(got, F.gaussian_nll_loss(mean, target, lv.exp(), full=True))


def test_normalized_mse_counts_only_what_the_mask_has():
    p, q = torch.randn(3, 4), torch.randn(3, 4)
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(sf.normalized_mse(p, q, mask=mask), sf.normalized_mse(p[mask], q[mask]))  # fmt: skip
    assert sf.normalized_mse(p, q, mask=~mask & mask).item() == 0
    torch.testing.assert_close(sf.normalized_mse(p, -p), torch.tensor(4.0))


def test_ctc_reports_and_leaves_out_what_is_infeasible():
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4, requires_grad=True)
    targets = torch.tensor([[1, 2, 3], [1, 1, 1], [2, 3, 1]])
    lengths, sizes = torch.tensor([5, 4, 5]), torch.tensor([3, 3, 2])
    out = sf.ctc_loss(x.log_softmax(-1), targets, lengths, sizes)
    assert out.is_infeasible.tolist() == [False, True, False]
    keep = [0, 2]
    want = F.ctc_loss(x.log_softmax(-1)[:, keep], targets[keep], lengths[keep], sizes[keep])
    torch.testing.assert_close(out.loss, want)
    out.loss.backward()
    assert x.grad.isfinite().all() and not x.grad[:, 1].any()
    for reduction in ("sum", "none"):
        each = sf.ctc_loss(x.log_softmax(-1), targets, lengths, sizes, reduction=reduction).loss
        assert each.sum() > 0 and each.ndim == (reduction == "none")


def test_ctc_with_a_forbidden_class():
    x = torch.zeros(4, 2, 3)
    x[:, 1, 2] = -INF
    leaf = x.requires_grad_()
    out = sf.ctc_loss(leaf.log_softmax(-1), torch.tensor([[1, 2]] * 2), torch.tensor([4, 4]), torch.tensor([2, 2]))  # fmt: skip
    out.loss.backward()
    assert out.is_infeasible.tolist() == [False, True] and leaf.grad.isfinite().all()
    with pytest.raises(UsageError, match="padded targets"):
        sf.ctc_loss(x, torch.tensor([1, 2]), torch.tensor([4, 4]), torch.tensor([1, 1]))


def test_two_empty_regions_agree():
    x = torch.full((2, 3, 3), -1e5, requires_grad=True)
    for fn in (sf.dice_loss, sf.iou_loss):
        loss = fn(x, torch.zeros(2, 3, 3))
        (grad,) = torch.autograd.grad(loss, x)
        assert loss.item() == 0 and not grad.any()


def test_overlap_of_a_large_half_precision_image():
    x = torch.full((1, 512, 512), 20.0, dtype=torch.float16)
    assert sf.dice_loss(x, torch.ones(1, 512, 512)).item() == pytest.approx(0, abs=1e-5)
    assert sf.iou_loss(x, torch.ones(1, 512, 512), smooth=1.0).item() == pytest.approx(0, abs=1e-5)

"""One entry for each function: how to call it, what it must equal, and the formula it replaces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import stayfinite.numerics as sf

INF = math.inf
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MASK = torch.tensor([[True, True, False, True], [False] * 4, [True, False, False, False]])
TARGET = torch.tensor([2, -100, 0])
HALF_TARGET = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0] * 4, [1.0, 0.0, 0.25, 1.0]])


def edge_values(dtype: torch.dtype) -> list[float]:
    """0, -0, subnormals, the ends of the range, and the neighbors of 1, in both signs."""
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    sizes = [0.0, least, 3 * least, info.tiny / 2, info.tiny, info.eps, 0.25, 0.5, 1 - info.eps / 2]
    sizes += [1.0, 1 + info.eps, 3.0, 11.0, 89.0, info.max**0.5, info.max / 2, info.max]
    return sizes + [-s for s in sizes]


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable[..., Tensor]
    sample: Callable[[], list[Tensor]]
    """Ordinary inputs in fp64, inside the domain and away from kinks."""
    textbook: Callable[..., Tensor]
    """The formula as it is usually written; in fp64 it is the reference too, unless one is given."""
    failing: Callable[[], list[Tensor]]
    """Inputs on which the textbook formula gives a value or a gradient that is not finite."""
    fails_by: str = "nonfinite"
    """Or "dead": finite, but the gradient is zero where it must not be."""
    reference: Callable[..., Tensor] | None = None
    ulps: float = 2.0
    grad_ulps: float = 8.0
    is_elementwise: bool = False
    has_second: bool = True
    allows_neg_inf: bool = False
    extreme: Callable[[Any], Any] | None = None
    """Maps drawn extreme inputs to what the function promises to bear, where that is not all."""
    can_vmap: bool = True
    can_compile: bool = True
    num_trained: int | None = None
    """How many of the inputs, from the first, get a gradient; all unless told."""
    grad_size: float = 0.0
    size: float = 0.0
    """Errors are counted in the last place of numbers of this size at least."""

    def __str__(self) -> str:
        return self.name

    def expected(self, *inputs: Tensor) -> Tensor:
        return (self.reference or self.textbook)(*inputs)


def rand(*shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64) * (high - low) + low


def t(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def half(*values: float) -> Tensor:
    return t(*values, dtype=torch.float16)


def unit(low: float, high: float, n: int = 1, shape: tuple[int, ...] = (3, 4)) -> Callable:
    return lambda: [rand(*shape, low=low, high=high) for _ in range(n)]


ELEMENTWISE = [
    Case("safe_log", sf.safe_log, unit(0.01, 5), lambda x: torch.where(x > 0, torch.log(x), 0.0), lambda: [t(0.0, 1.0)], reference=torch.log, is_elementwise=True),
    Case("safe_sqrt", sf.safe_sqrt, unit(0.01, 5), lambda x: torch.sqrt(x + 1e-8), lambda: [half(0.0, 1.0)], reference=torch.sqrt, is_elementwise=True),
    Case("safe_exp", sf.safe_exp, unit(-5, 5), torch.exp, lambda: [t(89.0, 1.0)], is_elementwise=True),
    Case("safe_div", sf.safe_div, lambda: [rand(3, 4), rand(3, 4, low=0.3)], lambda n, d: n / (d + 1e-8), lambda: [half(1.0, 1.0), half(0.0, 1.0)], reference=torch.div, is_elementwise=True),
    Case("safe_pow_half", lambda x: sf.safe_pow(x, 0.5), unit(0.01, 5), lambda x: x**0.5, lambda: [t(0.0, 1.0)], is_elementwise=True),
    Case("safe_pow_fraction", lambda x: sf.safe_pow(x, 2.5), unit(0.01, 5), lambda x: x**2.5, lambda: [t(-1e-9, 1.0)], is_elementwise=True),
    Case("safe_pow_inverse", lambda x: sf.safe_pow(x, -1.0), unit(0.1, 5), lambda x: x**-1.0, lambda: [t(0.0, 1.0)], is_elementwise=True),
    Case("safe_pow_learned", sf.safe_pow, lambda: [rand(3, 4, low=0.05), rand(3, 4, low=0.2)], lambda x, p: x**p, lambda: [t(0.0, 1.0), t(0.5, 2.0)], is_elementwise=True, grad_ulps=16),
    Case("safe_acos", sf.safe_acos, unit(-0.9, 0.9), torch.acos, lambda: [t(1.0000001, 1.0)], is_elementwise=True, grad_ulps=8),
    Case("safe_asin", sf.safe_asin, unit(-0.9, 0.9), torch.asin, lambda: [t(1.0, 0.0)], is_elementwise=True),
    Case("safe_atanh", sf.safe_atanh, unit(-0.9, 0.9), torch.atanh, lambda: [t(1.0, 0.0)], is_elementwise=True),
    Case("p_log_p", sf.p_log_p, unit(0.01, 1.5), lambda p: p * torch.log(p), lambda: [t(0.0, 1.0)], is_elementwise=True, grad_size=1.0),
    Case("bound", lambda x: sf.bound(x, -3.0, 3.0), unit(-2, 2), lambda x: x.clamp(-3, 3), lambda: [t(9.0)], fails_by="dead", is_elementwise=True),
    Case("log1mexp", sf.log1mexp, unit(-5, -0.01), lambda x: torch.log(1 - torch.exp(x)), lambda: [t(-1e-10, -1.0)], is_elementwise=True, grad_ulps=8, ulps=3),
    Case("safe_logaddexp", sf.safe_logaddexp, lambda: [rand(3, 4), rand(3, 4)], lambda a, b: torch.log(a.exp() + b.exp()), lambda: [t(-INF, 90.0), t(-INF, 1.0)], is_elementwise=True, allows_neg_inf=True, ulps=3, size=1.0),
]  # fmt: skip

REDUCTIONS = [
    Case("safe_norm", sf.safe_norm, unit(-2, 2), lambda x: x.square().sum(-1).sqrt(), lambda: [torch.zeros(2, 3)], ulps=2),
    Case("safe_normalize", sf.safe_normalize, unit(-2, 2), lambda x: x / x.norm(dim=-1, keepdim=True), lambda: [torch.zeros(2, 3)], ulps=4),
    Case("safe_var", sf.safe_var, unit(-2, 2), lambda x: ((x - x.mean(-1, True)) ** 2).sum(-1) / (x.shape[-1] - 1), lambda: [torch.ones(3, 1)], size=1.0, ulps=4),
    Case("safe_std", sf.safe_std, unit(-2, 2), lambda x: x.var(-1).sqrt(), lambda: [torch.ones(3, 4)], ulps=4),
    Case("cosine_similarity", sf.cosine_similarity, unit(0.2, 2, 2), lambda x, y: (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)), lambda: [torch.zeros(2, 3), torch.ones(2, 3)], size=1.0, ulps=4),
    Case("pairwise_distance", lambda x, y: sf.pairwise_distance(x, y), lambda: [rand(3, 4), rand(2, 4)], lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(), lambda: [torch.eye(3), torch.eye(3)], ulps=4, grad_ulps=16),
    Case("masked_sum", lambda x: sf.masked_sum(x, MASK, -1), unit(-2, 2), lambda x: (x * MASK).sum(-1), lambda: [torch.full((3, 4), INF)], size=1.0, ulps=2),
    Case("masked_mean", lambda x: sf.masked_mean(x, MASK, -1), unit(-2, 2), lambda x: (x * MASK).sum(-1) / MASK.sum(-1), lambda: [torch.ones(3, 4)], reference=lambda x: (x * MASK).sum(-1) / MASK.sum(-1).clamp(min=1), size=1.0, ulps=2),
    Case("masked_softmax", lambda x: sf.masked_softmax(x, MASK), unit(-2, 2), lambda x: x.masked_fill(~MASK, -INF).softmax(-1), lambda: [torch.ones(3, 4)], reference=lambda x: x.masked_fill(~MASK, -1e300).softmax(-1) * MASK, size=1.0, ulps=4, allows_neg_inf=True),
    Case("masked_log_softmax", lambda x: sf.masked_log_softmax(x, MASK, masked_value=-50.0), unit(-2, 2), lambda x: x.masked_fill(~MASK, -INF).log_softmax(-1), lambda: [torch.ones(3, 4)], reference=lambda x: torch.where(MASK, x.masked_fill(~MASK, -1e300).log_softmax(-1), -50.0), size=1.0, ulps=4, allows_neg_inf=True),
    Case("masked_logsumexp", lambda x: sf.masked_logsumexp(x, MASK, empty=0.0), unit(-2, 2), lambda x: x.masked_fill(~MASK, -INF).logsumexp(-1), lambda: [torch.ones(3, 4)], reference=lambda x: torch.where(MASK.any(-1), x.masked_fill(~MASK, -1e300).logsumexp(-1), 0.0), size=1.0, ulps=4, allows_neg_inf=True),
    Case("log_mixture", sf.log_mixture, unit(-2, 2, 2), lambda w, c: (w.softmax(-1) * c.exp()).sum(-1).log(), lambda: [torch.zeros(1, 2), torch.full((1, 2), -500.0)], size=1.0, ulps=4, allows_neg_inf=True),
]  # fmt: skip


def _textbook_focal(x: Tensor) -> Tensor:
    p = x.softmax(1).gather(1, TARGET.clamp(min=0)[:, None]).squeeze(1)
    return ((1 - p) ** 0.5 * -p.log() * (TARGET >= 0)).sum() / 2


def _textbook_binary_focal(x: Tensor) -> Tensor:
    tgt = HALF_TARGET.to(x.dtype)
    p = x.sigmoid()
    return (tgt * (1 - p) ** 0.5 * -p.log() + (1 - tgt) * p**0.5 * -(1 - p).log()).mean()


def _textbook_beta_mi(p1: Tensor, p2: Tensor, pk: Tensor) -> Tensor:
    return ((p1 * p2) ** 0.6 / pk).sum(-1).log()


def _textbook_temi(s1: Tensor, s2: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
    pk = torch.full((2, 1, 4), 0.25, dtype=s1.dtype)
    a, b = (s1 / 0.1).softmax(-1), (s2 / 0.1).softmax(-1)
    c, d = (t1 / 0.05).softmax(-1).detach(), (t2 / 0.05).softmax(-1).detach()
    w = (c * d).sum(-1).mean(0)
    pmi = _textbook_beta_mi(a, d, pk) + _textbook_beta_mi(b, c, pk)
    return (-0.5 * pmi * w / w.sum()).sum(-1).mean()


def _temi(s1: Tensor, s2: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
    return sf.temi_loss((s1, s2), (t1, t2), torch.full((2, 4), 0.25, dtype=s1.dtype)).loss


def _textbook_nce(q: Tensor, k: Tensor) -> Tensor:
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    return F.cross_entropy(q @ k.mT / 0.1, torch.arange(len(q)))


def _textbook_nll(mean: Tensor, target: Tensor, lv: Tensor) -> Tensor:
    return 0.5 * (lv + (target - mean) ** 2 / lv.exp()).mean()


def _textbook_nmse(p: Tensor, q: Tensor) -> Tensor:
    def scaled(x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()

    return F.mse_loss(scaled(p), scaled(q))


CTC_TARGETS = torch.tensor([[1, 1], [1, 2]])
CTC_INPUT, CTC_LENGTH = torch.tensor([2, 3]), torch.tensor([2, 2])


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _ctc(x: Tensor) -> Tensor:
    # F.ctc_loss gives the gradient before the log_softmax, so that has to be part of the function.
    return sf.ctc_loss(_wide(x).log_softmax(-1), CTC_TARGETS, CTC_INPUT, CTC_LENGTH).loss


def _textbook_ctc(x: Tensor) -> Tensor:
    return F.ctc_loss(_wide(x).log_softmax(-1), CTC_TARGETS, CTC_INPUT, CTC_LENGTH)


def _reference_ctc(x: Tensor) -> Tensor:
    return F.ctc_loss(
        _wide(x).log_softmax(-1)[:, 1:], CTC_TARGETS[1:], CTC_INPUT[1:], CTC_LENGTH[1:]
    )


def _textbook_dice(x: Tensor) -> Tensor:
    p, tgt = x.sigmoid(), HALF_TARGET.to(x.dtype)
    return (1 - 2 * (p * tgt).sum(-1) / (p.sum(-1) + tgt.sum(-1))).mean()


def _textbook_iou(x: Tensor) -> Tensor:
    p, tgt = x.sigmoid(), HALF_TARGET.to(x.dtype)
    both = (p * tgt).sum(-1)
    return (1 - both / (p.sum(-1) + tgt.sum(-1) - both)).mean()


def _within(limit: float) -> Callable[[Any], Any]:
    return lambda inputs: [x.clamp(-limit, limit) for x in inputs]


LOSSES = [
    Case("bpr_loss", sf.bpr_loss, unit(-2, 2, 2), lambda p, n: -torch.log(torch.sigmoid(p - n)).mean(), lambda: [t(-200.0), t(0.0)], ulps=4),
    Case("focal_loss", lambda x: sf.focal_loss(x, TARGET, gamma=0.5), unit(-2, 2), _textbook_focal, lambda: [torch.eye(4)[[1, 0, 0]] * 200], ulps=8, grad_ulps=32, allows_neg_inf=True),
    Case("binary_focal_loss", lambda x: sf.binary_focal_loss(x, HALF_TARGET, gamma=0.5), unit(-2, 2), _textbook_binary_focal, lambda: [torch.full((3, 4), 100.0)], ulps=8, grad_ulps=32),
    Case("masked_cross_entropy", lambda x: sf.masked_cross_entropy(x, TARGET), unit(-2, 2), lambda x: F.cross_entropy(x, TARGET), lambda: [torch.full((3, 4), -INF)], ulps=8, grad_ulps=16, allows_neg_inf=True),
    Case("masked_cross_entropy_smooth", lambda x: sf.masked_cross_entropy(x, TARGET, label_smoothing=0.1), unit(-2, 2), lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1), lambda: [torch.zeros(3, 4).index_fill_(1, torch.tensor([1]), -INF)], ulps=8, grad_ulps=16, allows_neg_inf=True),
    Case("beta_mi", sf.beta_mi, unit(0.05, 1, 3), _textbook_beta_mi, lambda: [t(1.0, 0.0), t(0.0, 1.0), t(0.5, 0.5)], size=1.0, ulps=8, grad_ulps=16),
    Case("temi_loss", _temi, unit(-0.2, 0.2, 4, (2, 3, 4)), _textbook_temi, lambda: [torch.eye(4)[:3].expand(2, 3, 4) * s for s in (30.0, 30.0, -30.0, -30.0)], ulps=32, grad_ulps=64, num_trained=2),
    Case("info_nce", sf.info_nce, unit(0.2, 2, 2), _textbook_nce, lambda: [torch.zeros(2, 3), torch.ones(2, 3)], ulps=32, grad_ulps=64),
    Case("gaussian_nll", sf.gaussian_nll, unit(-2, 2, 3), _textbook_nll, lambda: [t(0.0), t(1.0), t(-90.0)], ulps=8, grad_ulps=16),
    Case("gaussian_kl", sf.gaussian_kl, unit(-2, 2, 2), lambda m, lv: -0.5 * (1 + lv - m**2 - lv.exp()).mean(), lambda: [t(0.0), t(100.0)], ulps=8),
    Case("normalized_mse", sf.normalized_mse, unit(0.2, 2, 2), _textbook_nmse, lambda: [torch.zeros(1, 3), torch.ones(1, 3)], ulps=32, grad_ulps=64),
    Case("ctc_loss", _ctc, lambda: [rand(3, 2, 3)], _textbook_ctc, lambda: [torch.zeros(3, 2, 3)], reference=_reference_ctc, has_second=False, can_vmap=False, can_compile=False, ulps=8),
    Case("dice_loss", lambda x: sf.dice_loss(x, HALF_TARGET), unit(-2, 2), _textbook_dice, lambda: [torch.full((3, 4), -200.0)], ulps=4, grad_ulps=16),
    Case("iou_loss", lambda x: sf.iou_loss(x, HALF_TARGET), unit(-2, 2), _textbook_iou, lambda: [torch.full((3, 4), -200.0)], ulps=4, grad_ulps=16),
]  # fmt: skip

_RMS, _TEMPERATURE = sf.RMSNorm(4, eps=1e-20), sf.BoundedTemperature(0.1, floor=0.05)


def _textbook_sinkhorn(x: Tensor) -> Tensor:
    p = x.exp()
    for _ in range(6):
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p


def _textbook_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~MASK[:, :3], -INF)
    return scores.softmax(-1) @ v


def _reference_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~MASK[:, :3], -1e300)
    return (scores.softmax(-1) * MASK[:, :3]) @ v


_NORM, _NORM64 = sf.SafeBatchNorm1d(4), sf.SafeBatchNorm1d(4, dtype=torch.float64)


def _batch_norm(x: Tensor) -> Tensor:
    return _NORM64(x) if x.dtype == torch.float64 else _NORM(x)


def _textbook_batch_norm(x: Tensor) -> Tensor:
    centered = x - x.mean(0)
    running_var = centered.square().sum(0) / (len(x) - 1)
    return centered * (centered.square().mean(0) + 1e-5).rsqrt() + 0 * running_var


LAYERS = [
    Case("RMSNorm", _RMS, unit(0.2, 2), lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-20).rsqrt(), lambda: [torch.zeros(2, 4, dtype=torch.float16)], ulps=8, grad_ulps=64),
    Case("LogSinkhorn", sf.LogSinkhorn(6), unit(-2, 2, 1, (3, 3)), _textbook_sinkhorn, lambda: [torch.eye(3) * 90], size=1.0, ulps=32, grad_ulps=64, allows_neg_inf=True),
    Case("BoundedTemperature", _TEMPERATURE, unit(-2, 2), lambda x: x / torch.tensor(-110.0).exp(), lambda: [torch.ones(2, 3)], reference=lambda x: x / _TEMPERATURE.value().detach(), ulps=4),
    Case("SafeBatchNorm1d", _batch_norm, unit(-2, 2, 1, (5, 4)), _textbook_batch_norm, lambda: [torch.ones(1, 4)], size=1.0, ulps=32, grad_ulps=128, can_vmap=False),
    Case("stable_attention", lambda q, k, v: sf.stable_attention(q, k, v, MASK[:, :3]), unit(-2, 2, 3, (3, 4)), _textbook_attention, lambda: [torch.ones(3, 4)] * 3, reference=_reference_attention, size=1.0, ulps=32, grad_ulps=256, extreme=lambda xs: [xs[0], xs[1], xs[2].clamp(-0.1, 0.1)]),
]  # fmt: skip

CASES = [*ELEMENTWISE, *REDUCTIONS, *LOSSES, *LAYERS]


def leaves(inputs: list[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Fresh leaves that require grad."""
    return [x.detach().clone().to(dtype or x.dtype).requires_grad_() for x in inputs]


def value_and_grads(fn: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The value, and the gradients of a sum with uneven weights of at most 1."""
    out = fn(*inputs)
    weights = torch.arange(out.numel(), dtype=torch.float64).cos().reshape(out.shape)
    total = (out * weights.to(out.dtype)).sum()
    grads = torch.autograd.grad(total, inputs, allow_unused=True)
    return out.detach(), [torch.zeros_like(x) if g is None else g for g, x in zip(grads, inputs)]


def ulp_error(got: Tensor, want: Tensor, dtype: torch.dtype, size: float = 0.0) -> float:
    """The largest error in units of the last place of `dtype`, at the size of what is wanted."""
    info = torch.finfo(dtype)
    got, want = got.double(), want.double()
    _, exponent = torch.frexp(want.abs().clamp(min=size))
    unit_ = torch.ldexp(torch.full_like(want, info.eps / 2), exponent)
    unit_ = unit_.clamp(min=info.tiny * info.eps)
    return float(((got - want).abs() / unit_).max()) if want.numel() else 0.0

"""Each safe function against the formula it replaces: forward and backward, interleaved.

    python -m benchmarks.numerics [--rounds 30] [--json FILE]

The two alternate on the same input, round by round, so that a slow moment of the machine hits
both; the figure is the median of the ratios of the rounds. CPU time of one thread, fp32, about a
million numbers, on which the usual formula is fine (what it costs to be safe, not to fail). malloc
is asked to keep its memory, as the allocators of training machines do: page faults would count
otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import stayfinite.numerics as sf

BAR = 1.5
N, D = 8192, 128


@dataclass(frozen=True)
class Entry:
    """One function, the formula it replaces, and the inputs of both."""

    name: str
    safe: Callable[..., Tensor]
    usual: Callable[..., Tensor]
    inputs: Callable[[], list[Tensor]]
    why: str = ""
    """Why it is beyond the bar, where it is."""


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.rand(*(shape or (N, D))) * (high - low) + low


def one(low: float, high: float) -> Callable[[], list[Tensor]]:
    return lambda: [uniform(low, high)]


MASK = torch.rand(N, D) > 0.3
CLASS = torch.randint(0, D, (N,))
CLASS[::7] = -100
REGION = (torch.rand(64, 128 * 128) > 0.5).float()
CTC_TARGET = torch.randint(1, 20, (16, 10))
CTC_INPUT, CTC_LENGTH = torch.full((16,), 50), torch.full((16,), 10)
CAUSAL = torch.ones(128, 128, dtype=torch.bool).tril()


def usual_focal(x: Tensor) -> Tensor:
    p = x.softmax(1).gather(1, CLASS.clamp(min=0)[:, None]).squeeze(1)
    return ((1 - p) ** 2 * -p.log() * (CLASS >= 0)).mean()


def usual_binary_focal(x: Tensor, target: Tensor) -> Tensor:
    p = x.sigmoid()
    return (target * (1 - p) ** 2 * -p.log() + (1 - target) * p**2 * -(1 - p).log()).mean()


def usual_temi(s1: Tensor, s2: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
    a, b = (s1 / 0.1).softmax(-1), (s2 / 0.1).softmax(-1)
    c, d = (t1 / 0.05).softmax(-1).detach(), (t2 / 0.05).softmax(-1).detach()
    w = (c * d).sum(-1).mean(0)
    pmi = ((a * d) ** 0.6 * D).sum(-1).log() + ((b * c) ** 0.6 * D).sum(-1).log()
    return (-0.5 * pmi * w / w.sum()).sum(-1).mean()


def usual_nce(q: Tensor, k: Tensor) -> Tensor:
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    return F.cross_entropy(q @ k.mT / 0.1, torch.arange(len(q)))


def usual_nmse(p: Tensor, q: Tensor) -> Tensor:
    p = p / p.square().mean(-1, keepdim=True).sqrt()
    return F.mse_loss(p, q / q.square().mean(-1, keepdim=True).sqrt())


def usual_dice(x: Tensor) -> Tensor:
    p = x.sigmoid()
    return (1 - 2 * (p * REGION).sum(-1) / (p.sum(-1) + REGION.sum(-1))).mean()


def usual_iou(x: Tensor) -> Tensor:
    p = x.sigmoid()
    both = (p * REGION).sum(-1)
    return (1 - both / (p.sum(-1) + REGION.sum(-1) - both)).mean()


def usual_sinkhorn(x: Tensor) -> Tensor:
    p = x.exp()
    for _ in range(20):
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p


def usual_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~CAUSAL, -math.inf)
    return scores.softmax(-1) @ v


def temi(s1: Tensor, s2: Tensor, t1: Tensor, t2: Tensor) -> Tensor:
    return sf.temi_loss((s1, s2), (t1, t2), torch.full((4, D), 1 / D)).loss


RMS, TEMPERATURE, NORM = sf.RMSNorm(D), sf.BoundedTemperature(), sf.SafeBatchNorm1d(D)
USUAL_NORM, SINKHORN = torch.nn.BatchNorm1d(D), sf.LogSinkhorn()


def three_heads() -> list[Tensor]:
    return [torch.randn(32, 128, 64) for _ in range(3)]


ENTRIES = [
    Entry("safe_log", sf.safe_log, lambda x: torch.log(x + 1e-8), one(0.1, 1), why="a bound forward, a bound and a gate backward, next to one log"),
    Entry("safe_sqrt", sf.safe_sqrt, lambda x: torch.sqrt(x + 1e-8), one(0.1, 1)),
    Entry("safe_exp", sf.safe_exp, torch.exp, one(-3, 3), why="the gate that stops the gradient where the value is held"),
    Entry("safe_div", sf.safe_div, lambda n, d: n / (d + 1e-8), lambda: [uniform(-2, 2), uniform(0.1, 2)], why="the quotient and both derivatives are held and gated"),
    Entry("safe_pow", lambda x: sf.safe_pow(x, 0.7), lambda x: (x + 1e-8) ** 0.7, one(0.1, 2)),
    Entry("safe_pow (learned)", sf.safe_pow, lambda x, p: (x + 1e-8) ** p, lambda: [uniform(0.1, 2), uniform(0.5, 2)], why="looks at each exponent for whether it is whole"),
    Entry("safe_acos", sf.safe_acos, torch.acos, one(-0.9, 0.9)),
    Entry("safe_asin", sf.safe_asin, torch.asin, one(-0.9, 0.9)),
    Entry("safe_atanh", sf.safe_atanh, torch.atanh, one(-0.9, 0.9)),
    Entry("p_log_p", sf.p_log_p, lambda p: p * torch.log(p + 1e-8), one(0.01, 1)),
    Entry("bound", lambda x: sf.bound(x, -1, 1), lambda x: x.clamp(-1, 1), one(-2, 2)),
    Entry("log1mexp", sf.log1mexp, lambda x: torch.log(1 - torch.exp(x)), one(-3, -0.1), why="computes two formulas and keeps the one that has the digits"),
    Entry("safe_logaddexp", sf.safe_logaddexp, lambda a, b: torch.log(a.exp() + b.exp()), lambda: [uniform(-2, 2), uniform(-2, 2)], why="the shares come from two sigmoids of the difference, not from the result"),
    Entry("log_mixture", sf.log_mixture, lambda w, c: (w.softmax(-1) * c.exp()).sum(-1).log(), lambda: [uniform(-2, 2), uniform(-2, 2)], why="looks for rows without a component, before the softmax and after"),
    Entry("safe_norm", sf.safe_norm, lambda x: x.square().sum(-1).sqrt(), one(-2, 2)),
    Entry("safe_normalize", sf.safe_normalize, lambda x: x / x.norm(dim=-1, keepdim=True), one(-2, 2)),
    Entry("safe_var", sf.safe_var, lambda x: x.var(-1), one(-2, 2)),
    Entry("safe_std", sf.safe_std, lambda x: x.std(-1), one(-2, 2)),
    Entry("cosine_similarity", sf.cosine_similarity, lambda x, y: (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)), lambda: [uniform(-2, 2), uniform(-2, 2)]),
    Entry("pairwise_distance", sf.pairwise_distance, lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(), lambda: [torch.randn(128, 64), torch.randn(129, 64)]),
    Entry("masked_sum", lambda x: sf.masked_sum(x, MASK, -1), lambda x: (x * MASK).sum(-1), one(-2, 2)),
    Entry("masked_mean", lambda x: sf.masked_mean(x, MASK, -1), lambda x: (x * MASK).sum(-1) / MASK.sum(-1), one(-2, 2)),
    Entry("masked_softmax", lambda x: sf.masked_softmax(x, MASK), lambda x: x.masked_fill(~MASK, -math.inf).softmax(-1), one(-2, 2)),
    Entry("masked_log_softmax", lambda x: sf.masked_log_softmax(x, MASK, masked_value=0.0), lambda x: x.masked_fill(~MASK, -1e4).log_softmax(-1), one(-2, 2)),
    Entry("masked_logsumexp", lambda x: sf.masked_logsumexp(x, MASK), lambda x: x.masked_fill(~MASK, -math.inf).logsumexp(-1), one(-2, 2)),
    Entry("bpr_loss", sf.bpr_loss, lambda p, n: -torch.log(torch.sigmoid(p - n) + 1e-8).mean(), lambda: [uniform(-2, 2), uniform(-2, 2)]),
    Entry("focal_loss", lambda x: sf.focal_loss(x, CLASS), usual_focal, one(-2, 2), why="looks for rows that are all -inf before the softmax"),
    Entry("binary_focal_loss", sf.binary_focal_loss, usual_binary_focal, lambda: [uniform(-2, 2), MASK.float()]),
    Entry("masked_cross_entropy", lambda x: sf.masked_cross_entropy(x, CLASS), lambda x: F.cross_entropy(x, CLASS), one(-2, 2), why="looks for rows that are all -inf; torch's is one fused kernel"),
    Entry("beta_mi", sf.beta_mi, lambda a, b, k: ((a * b) ** 0.6 / k).sum(-1).log(), lambda: [uniform(0.01, 1) for _ in range(3)]),
    Entry("temi_loss", temi, usual_temi, lambda: [uniform(-0.5, 0.5, 4, N // 16, D) for _ in range(4)]),
    Entry("info_nce", sf.info_nce, usual_nce, lambda: [torch.randn(512, D), torch.randn(512, D)]),
    Entry("gaussian_nll", sf.gaussian_nll, lambda m, t, v: 0.5 * (v + (t - m) ** 2 / v.exp()).mean(), lambda: [uniform(-2, 2) for _ in range(3)], why="bounds the log-variance with a way back, and holds both derivatives"),
    Entry("gaussian_kl", sf.gaussian_kl, lambda m, v: -0.5 * (1 + v - m**2 - v.exp()).mean(), lambda: [uniform(-2, 2) for _ in range(2)], why="expm1 keeps the digits near 0 and costs more than exp"),
    Entry("normalized_mse", sf.normalized_mse, usual_nmse, lambda: [uniform(-2, 2) for _ in range(2)]),
    Entry("ctc_loss", lambda x: sf.ctc_loss(x.log_softmax(-1), CTC_TARGET, CTC_INPUT, CTC_LENGTH).loss, lambda x: F.ctc_loss(x.log_softmax(-1), CTC_TARGET, CTC_INPUT, CTC_LENGTH), lambda: [torch.randn(50, 16, 20)]),
    Entry("dice_loss", lambda x: sf.dice_loss(x, REGION), usual_dice, lambda: [torch.randn(64, 128 * 128)]),
    Entry("iou_loss", lambda x: sf.iou_loss(x, REGION), usual_iou, lambda: [torch.randn(64, 128 * 128)]),
    Entry("RMSNorm", RMS, lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * RMS.weight, one(-2, 2)),
    Entry("LogSinkhorn", SINKHORN, usual_sinkhorn, lambda: [torch.randn(1024, 16, 16)]),
    Entry("BoundedTemperature", TEMPERATURE, lambda x: x / TEMPERATURE.raw.exp(), one(-2, 2)),
    Entry("SafeBatchNorm1d", NORM, USUAL_NORM, one(-2, 2)),
    Entry("stable_attention", lambda q, k, v: sf.stable_attention(q, k, v, CAUSAL), usual_attention, three_heads),
]  # fmt: skip


def seconds(fn: Callable[..., Tensor], inputs: list[Tensor]) -> float:
    start = time.thread_time()
    fn(*inputs).sum().backward()
    elapsed = time.thread_time() - start
    for x in inputs:
        x.grad = None
    return elapsed


def measure(entry: Entry, rounds: int) -> dict[str, float]:
    """Median milliseconds of both, and the median of the rounds' ratios."""
    inputs = [x.requires_grad_() for x in entry.inputs()]
    for _ in range(3):
        seconds(entry.usual, inputs), seconds(entry.safe, inputs)
    usual, safe = [], []
    for i in range(rounds):
        pair = [(entry.usual, usual), (entry.safe, safe)]
        for fn, times in pair if i % 2 else reversed(pair):
            times.append(seconds(fn, inputs))
    return {
        "usual_ms": statistics.median(usual) * 1e3,
        "safe_ms": statistics.median(safe) * 1e3,
        "ratio": statistics.median(s / u for s, u in zip(safe, usual)),
    }


def keep_memory() -> None:
    """Start again with a malloc that keeps what is freed; it reads its settings only once."""
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        settings = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
        command = [sys.executable, "-m", "benchmarks.numerics", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **settings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", help="write the figures to this file too")
    parser.add_argument("--only", help="names that contain this")
    args = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures = {}
    print(f"{'function':22} {'usual ms':>9} {'safe ms':>9} {'ratio':>6}")
    for entry in ENTRIES:
        if args.only and args.only not in entry.name:
            continue
        row = figures[entry.name] = measure(entry, args.rounds)
        mark = "" if row["ratio"] <= BAR else f"  > {BAR}: {entry.why}"
        print(
            f"{entry.name:22} {row['usual_ms']:9.3f} {row['safe_ms']:9.3f} {row['ratio']:6.2f}{mark}"
        )
    within = sum(row["ratio"] <= BAR for row in figures.values())
    print(f"{within} of {len(figures)} within {BAR}x of the usual formula")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()

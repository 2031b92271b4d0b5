"""Random programs of 5 to 30 operators over random boxes, as data: whoever chooses chooses all."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Choose = Callable[[int], int]
"""A number from 0 to n - 1."""

ROWS, COLUMNS = 3, 4
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
RANGES = (
    (-1.0, 1.0), (0.0, 1.0), (0.0, 5.0), (1e-3, 2.0), (-50.0, 50.0), (1e-8, 1.0), (0.0, 0.0), (0.5, 0.5),
    (1.0, 4.0), (-3.0, -0.5), (0.0, 3e4), (-100.0, 100.0), (1e-30, 1e-3), (0.9, 1.1), (-1e-6, 1e-6),
)  # fmt: skip
SCALARS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-8, 1e-3, 10.0, 1e4, -0.25)

UNARY = (
    torch.exp, torch.log, torch.log1p, torch.expm1, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.abs, torch.neg,
    torch.square, torch.sigmoid, torch.tanh, F.relu, F.gelu, F.silu, F.softplus, F.logsigmoid, torch.sin, torch.cos,
    torch.acos, torch.asin, torch.atan, torch.erf, torch.sign, torch.floor, F.leaky_relu, F.elu, torch.log2,
    lambda x: x.pow(2), lambda x: x.pow(3), lambda x: x.pow(0.5), lambda x: x.pow(-1), lambda x: x.pow(1.5),
    lambda x: x.clone().mul_(2), lambda x: x.t().contiguous().t(), lambda x: x.detach(), F.hardtanh,
    lambda x: x.clamp(min=1e-6), lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=0.1, max=10), torch.atanh,
    lambda x: x.nan_to_num(), lambda x: torch.lgamma(x), F.softsign, F.mish, torch.exp2,
)  # fmt: skip
BINARY = (
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.mul, torch.div,
    lambda x, y: torch.where(x > 0, x, y), lambda x, y: torch.where(x > 0, torch.log(x), y),
    lambda x, y: torch.log(torch.where(x > 0, x, torch.ones_like(x))) + y, lambda x, y: torch.where(x != 0, y / x, y),
    lambda x, y: x / (y.abs() + 1e-3), lambda x, y: torch.lerp(x, y, 0.3), torch.hypot, torch.logaddexp,
    lambda x, y: torch.atan2(x, y), lambda x, y: x.clone().add_(y), lambda x, y: torch.addcmul(x, x, y, value=0.5),
    lambda x, y: (x @ y.transpose(-1, -2)) @ y, lambda x, y: F.mse_loss(x, y) + x, lambda x, y: torch.fmod(x, y),
    lambda x, y: F.cosine_similarity(x, y, dim=-1).unsqueeze(-1) + x, torch.pow, lambda x, y: (x - y) / (x - y).abs(),
    lambda x, y: torch.stack([x, y]).mean(0), lambda x, y: torch.cat([x, y]).sum(0, keepdim=True) + x,
    lambda x, y: F.binary_cross_entropy_with_logits(x, y.clamp(0, 1)) + x, lambda x, y: torch.xlogy(x, y),
)  # fmt: skip
ROWWISE = (
    lambda x: x - x.amax(-1, keepdim=True), lambda x: x - x.max(-1, keepdim=True).values, lambda x: x.softmax(-1),
    lambda x: x.log_softmax(-1), lambda x: x - x.logsumexp(-1, keepdim=True), lambda x: x / x.norm(dim=-1, keepdim=True),
    lambda x: x / x.sum(-1, keepdim=True), lambda x: x / x.exp().sum(-1, keepdim=True), lambda x: F.normalize(x, dim=-1),
    lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-6), lambda x: x - x.mean(-1, keepdim=True),
    lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), lambda x: x.var(-1, keepdim=True) + x,
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    lambda x: x.sum(-1, keepdim=True) + x, lambda x: x.mean() + x, lambda x: x.amin(-1, keepdim=True) * x,
    lambda x: x.cumsum(-1), lambda x: x.sort(-1).values, lambda x: x.flip(-1), lambda x: x.prod(-1, keepdim=True) + x,
    lambda x: (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True),
    lambda x: (x * x).sum(-1, keepdim=True).sqrt() + x, lambda x: x / (x * x).sum(-1, keepdim=True).sqrt().clamp_min(1e-4),
    lambda x: x.topk(2, -1).values.sum(-1, keepdim=True) + x, lambda x: (x == x.amax(-1, keepdim=True)).to(x.dtype) * x,
    lambda x: x / x.max(), lambda x: x.norm() + x, lambda x: 1 - x, lambda x: torch.var_mean(x, -1)[0].unsqueeze(-1) + x,
    lambda x: x[:, [1, 0, 2, 3]] * x, lambda x: x.gather(-1, torch.zeros(x.shape, dtype=torch.long)) - x,
    lambda x: torch.tril(torch.ones(ROWS, COLUMNS, dtype=x.dtype)) * x,
    lambda x: x.masked_fill(torch.triu(torch.ones(ROWS, COLUMNS), 1).bool(), float("-inf")).softmax(-1),
    lambda x: (x.transpose(0, 1) @ x).diagonal().unsqueeze(0) + x, lambda x: x.to(torch.float16).to(x.dtype),
)  # fmt: skip
MASKED = (
    lambda x, m: x.masked_fill(m, 0.0), lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1),
    lambda x, m: (x * m).sum() / m.sum() + x, lambda x, m: (x * m).sum() / m.sum().clamp(min=1) + x,
    lambda x, m: x[m].sum() + x, lambda x, m: x[m].mean() + x, lambda x, m: torch.where(m, x, -x),
    lambda x, m: x.masked_fill(m, float("-inf")).amax(-1, keepdim=True).clamp(min=-5) + x,
    lambda x, m: x.masked_fill(m, -1e4).log_softmax(-1), lambda x, m: x / m.to(x.dtype).sum(-1, keepdim=True),
    lambda x, m: x.index_put((m,), torch.tensor(1.0, dtype=x.dtype)), lambda x, m: (x * m) / (m.sum(-1, keepdim=True) + 1e-6),
)  # fmt: skip
INDEXED = (
    lambda x, i: x.gather(-1, i), lambda x, i: torch.zeros_like(x).scatter_add(-1, i, x),
    lambda x, i: F.nll_loss(x.log_softmax(-1), i[:, 0]) + x, lambda x, i: F.cross_entropy(x, i[:, 0], ignore_index=0) + x,
    lambda x, i: F.one_hot(i[:, 0], COLUMNS).to(x.dtype) * x, lambda x, i: x[i[:, 0].clamp(max=2)],
    lambda x, i: F.embedding(i[:, 0].clamp(max=2), x), lambda x, i: x / i.to(x.dtype),
    lambda x, i: x * torch.bincount(i.flatten(), minlength=COLUMNS).to(x.dtype),
)  # fmt: skip
KINDS = (
    ("unary", UNARY),
    ("binary", BINARY),
    ("scalar", BINARY[:8]),
    ("row", ROWWISE),
    ("mask", MASKED),
    ("index", INDEXED),
)


@dataclass(frozen=True)
class Step:
    """One line: which function of which kind, of which earlier values."""

    kind: str
    function: int
    first: int
    second: int


@dataclass(frozen=True)
class Program:
    dtype: torch.dtype
    ranges: tuple[tuple[float, float], ...]
    """Of the float inputs."""
    mask: tuple[int, int]
    labels: tuple[int, int]
    steps: tuple[Step, ...]

    def __call__(
        self, inputs: list[torch.Tensor], mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        values = list(inputs)
        for step in self.steps:
            values.append(self._line(step, values, mask, labels))
        return sum(v.sum() for v in values[-3:])

    def _line(
        self, step: Step, values: list, mask: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        x = values[step.first % len(values)]
        f = dict(KINDS)[step.kind][step.function]
        if step.kind == "binary":
            return f(x, values[step.second % len(values)])
        if step.kind == "scalar":
            return f(x, torch.tensor(SCALARS[step.second % len(SCALARS)], dtype=x.dtype))
        if step.kind == "mask":
            return f(x, mask)
        if step.kind == "index":
            return f(x, labels)
        return f(x)


def make_program(choose: Choose) -> Program:
    dtype = DTYPES[choose(len(DTYPES))]
    ranges = tuple(RANGES[choose(len(RANGES))] for _ in range(1 + choose(3)))
    mask = ((0, 1), (0, 1), (0, 0), (1, 1))[choose(4)]
    labels = ((0, 3), (0, 3), (1, 3), (2, 2), (0, 0))[choose(5)]
    steps = []
    for _ in range(5 + choose(26)):
        kind, functions = KINDS[choose(len(KINDS))]
        # Values made lately are taken more often: programs go deep.
        first = len(ranges) + len(steps) - 1 - choose(min(4, len(ranges) + len(steps)))
        second = choose(len(ranges) + len(steps)) if kind == "binary" else choose(len(SCALARS))
        steps.append(Step(kind, choose(len(functions)), first, second))
    return Program(dtype, ranges, mask, labels, tuple(steps))

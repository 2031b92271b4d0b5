"""Trainings that look alarming and are healthy."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

INF, NAN = float("inf"), float("nan")


@dataclass
class Case:
    model: nn.Module
    loss_of: Any
    batches: list[Any]
    optimizer: Any = None
    scaler: Any = None
    num_skipped: int = 0
    """Steps that the GradScaler itself leaves out."""
    extra: dict[str, Any] = field(default_factory=dict)


class Flat(nn.Module):
    """A linear layer with whatever a case hangs on it."""

    def __init__(self, **buffers):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.fc(x)


def xs(count=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=generator) for _ in range(count)]


def squares(model, x):
    return model(x).pow(2).mean()


def masked_attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("causal", torch.full((5, 5), -INF).triu(1))

        def forward(self, x):
            scores = self.q(x) @ self.k(x).T + self.causal
            scores = scores.masked_fill(torch.eye(5, dtype=torch.bool).roll(1, 0).triu(), -INF)
            return F.softmax(scores, -1) @ x

    return Case(Attention(), squares, xs())


def unused_parameters():
    model = Flat()
    model.unused = nn.Linear(3, 3)
    return Case(model, squares, xs())


def sparse_embedding():
    model = nn.EmbeddingBag(10, 3, sparse=True, mode="sum")
    data = [torch.randint(10, (4, 3)) for _ in range(6)]
    return Case(model, squares, data, torch.optim.SparseAdam(model.parameters(), lr=0.1))


def sparse_gradient_sgd():
    model = nn.Embedding(10, 3, sparse=True)
    data = [torch.randint(10, (4,)) for _ in range(6)]
    return Case(model, squares, data)


def huge_but_finite():
    model = Flat()
    return Case(
        model,
        lambda m, x: m(x).sum() * 1e30,
        xs(),
        torch.optim.SGD(model.parameters(), lr=1e-30),
    )


def gradient_norm_overflows_over_finite_gradients():
    """The squares of 1e25 are beyond fp32; each gradient is an ordinary finite number."""
    model = Flat()
    return Case(
        model,
        lambda m, x: m(x).sum() * 1e25,
        xs(),
        torch.optim.SGD(model.parameters(), lr=1e-27),
    )


def loss_beyond_half_but_not_float():
    return Case(Flat(), lambda m, x: m(x).pow(2).mean() * 1e5, xs(), extra={"lr": 1e-9})


def amp_initial_overflow():
    model = Flat()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)

    def loss_of(m, x):
        with torch.autocast("cpu", dtype=torch.float16):
            y = m(x)
        return y.float().pow(2).mean()

    return Case(model, loss_of, xs(16), None, scaler, num_skipped=-1)


def missing_values_masked_before_use():
    def loss_of(m, x):
        is_known = ~torch.isnan(x)
        return (m(torch.where(is_known, x, 0.0)).sum(-1) * is_known.any(-1)).pow(2).mean()

    data = xs()
    for x in data:
        x[1, 2] = NAN
    return Case(Flat(), loss_of, data)


def missing_labels_selected_out():
    def loss_of(m, batch):
        x, y = batch
        is_known = ~torch.isnan(y)
        return (m(x)[is_known] - y[is_known]).pow(2).mean()

    data = []
    for x in xs():
        y = torch.randn(5, 3)
        y[0, 1] = NAN
        data.append((x, y))
    return Case(Flat(), loss_of, data)


def infinite_buffers_by_design():
    """Observers start at (+inf, -inf) and become finite; a mask stays -inf for ever."""

    class Observer(Flat):
        def __init__(self):
            super().__init__(
                low=torch.tensor(INF), high=torch.tensor(-INF), mask=torch.full((3,), -INF)
            )

        def forward(self, x):
            with torch.no_grad():
                self.low.copy_(torch.minimum(self.low, x.min()))
                self.high.copy_(torch.maximum(self.high, x.max()))
            return self.fc(x)

    return Case(Observer(), squares, xs())


def best_so_far_buffer_becomes_infinite_again():
    """A buffer that was infinite from the start may be set back to it."""

    class Patience(Flat):
        def forward(self, x):
            with torch.no_grad():
                self.best.fill_(INF if x.mean() > 0 else 1.0)
            return self.fc(x)

    return Case(Patience(best=torch.tensor(INF)), squares, xs())


def complex_parameters():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(torch.complex64) @ self.w).abs()

    return Case(Complex(), squares, xs())


def odd_buffers():
    kinds = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    buffers = {k: torch.ones(3).to(getattr(torch, k)) for k in kinds}
    buffers |= {
        "count": torch.zeros((), dtype=torch.int64),
        "flags": torch.tensor([True, False]),
        "small": torch.zeros(2, dtype=torch.uint8),
        "empty": torch.zeros(0),
        "spectrum": torch.zeros(2, dtype=torch.complex128),
        "quarter": torch.ones(3, dtype=torch.bfloat16),
        "nothing": None,
    }

    class Odd(Flat):
        def forward(self, x):
            self.count += 1
            return self.fc(x)

    return Case(Odd(**buffers), squares, xs())


def sparse_buffer():
    adjacency = torch.eye(4).to_sparse()

    class Graph(Flat):
        def forward(self, x):
            return self.fc(torch.sparse.mm(self.adjacency, x.T).T)

    return Case(Graph(adjacency=adjacency), squares, xs())


def meta_buffer():
    return Case(Flat(ghost=torch.empty(3, device="meta")), squares, xs())


def scalar_and_empty_parameters():
    model = Flat()
    model.scale = nn.Parameter(torch.tensor(1.0))
    model.nobody = nn.Parameter(torch.zeros(0, 3))

    def loss_of(m, x):
        return (m(x) * m.scale).pow(2).mean() + m.nobody.sum()

    return Case(model, loss_of, xs())


def gradients_of_some_only():
    """Which layer takes part depends on the batch: the other's gradient is None."""

    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.a(x) if x[0, 0] > 0 else self.b(x)

    return Case(Switch(), squares, xs())


def frozen_parameters():
    model = Flat()
    model.fc.bias.requires_grad_(False)
    moved = [p for p in model.parameters() if p.requires_grad]
    return Case(model, squares, xs(), torch.optim.Adam(moved, lr=0.1))


@dataclass
class Sample:
    x: torch.Tensor
    weight: float
    name: str


def nested_batches_and_outputs():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Flat()

        def forward(self, batch):
            y = self.inner(batch["sample"].x)
            return {"y": y, "aux": [Sample(y * 2, 1.0, "b"), None], "n": 3}

    def loss_of(m, batch):
        out = m(batch)
        return out["y"].pow(2).mean() + out["aux"][0].x.mean() ** 2

    data = [{"sample": Sample(x, 1.0, "a"), "ids": [1, 2], "none": None} for x in xs()]
    return Case(Outer(), loss_of, data)


def fused_optimizer():
    model = Flat()
    return Case(model, squares, xs(), torch.optim.AdamW(model.parameters(), lr=0.1, fused=True))


def optimizer_without_state():
    model = Flat()
    return Case(model, squares, xs(), torch.optim.SGD(model.parameters(), lr=0.1))


def adam_with_tensor_lr():
    model = Flat()
    return Case(model, squares, xs(), torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)))


def infinite_lr_bound_in_group():
    """Not every number of a group is a learning rate."""
    model = Flat()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["max_lr"] = INF
    return Case(model, squares, xs(), optimizer)


def loss_zero_and_gradients_zero():
    return Case(Flat(), lambda m, x: m(x).sum() * 0, xs())


def max_pool_with_minus_infinity():
    """max over -inf padding, log(0) that a `where` with a safe inner argument discards."""

    class Pool(Flat):
        def forward(self, x):
            padded = F.pad(self.fc(x), (0, 2), value=-INF)
            return padded.amax(-1, keepdim=True)

    return Case(Pool(), squares, xs())


def float64_model():
    return Case(Flat().double(), squares, [x.double() * 1e120 for x in xs()], extra={"lr": 1e-260})


def tied_weights():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    return Case(model, squares, xs())


CASES = [
    masked_attention, unused_parameters, sparse_embedding, sparse_gradient_sgd, huge_but_finite,
    gradient_norm_overflows_over_finite_gradients, loss_beyond_half_but_not_float,
    amp_initial_overflow, missing_values_masked_before_use, missing_labels_selected_out,
    infinite_buffers_by_design, best_so_far_buffer_becomes_infinite_again, complex_parameters,
    odd_buffers, sparse_buffer, meta_buffer, scalar_and_empty_parameters, gradients_of_some_only,
    frozen_parameters, nested_batches_and_outputs, fused_optimizer, optimizer_without_state,
    adam_with_tensor_lr, infinite_lr_bound_in_group, loss_zero_and_gradients_zero,
    max_pool_with_minus_infinity, float64_model, tied_weights,
]  # fmt: skip


def build(make):
    torch.manual_seed(4)
    case = make()
    if case.optimizer is None:
        lr = case.extra.get("lr", 0.05)
        case.optimizer = torch.optim.SGD(case.model.parameters(), lr=lr, momentum=0.5)
    return case


def plain_step(case, batch):
    case.optimizer.zero_grad()
    loss = case.loss_of(case.model, batch)
    if case.scaler is None:
        loss.backward()
        case.optimizer.step()
    else:
        case.scaler.scale(loss).backward()
        case.scaler.step(case.optimizer)
        case.scaler.update()

"""Low-rank adaptation with a regularizer on the leading singular direction of the update B A. As is
usual, B starts at zero: the update is the zero matrix, all singular values are equal, and the first
backward already is NaN."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class LoraLinear(nn.Module):
    def __init__(self, dim: int, rank: int, init_b: float) -> None:
        super().__init__()
        self.base = nn.Linear(dim, dim)
        self.base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, dim) / dim**0.5)
        self.lora_b = nn.Parameter(init_b * torch.randn(dim, rank))

    def delta(self):
        return self.lora_b @ self.lora_a

    def forward(self, x):
        return self.base(x) + F.linear(x, self.delta())


class AdaptedNet(nn.Module):
    def __init__(self, init_b: float) -> None:
        super().__init__()
        self.layer = LoraLinear(6, 2, init_b)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)))


def alignment_penalty(delta, direction):
    u, _, _ = torch.svd(delta)  # <- born here
    return 1 - (u[:, 0] @ direction) ** 2


def _case(seed: int, init_b: float) -> Case:
    torch.manual_seed(seed)
    direction = F.normalize(torch.randn(6), dim=0)
    batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(10)]

    def loss_fn(model, batch):
        x, label = batch
        penalty = alignment_penalty(model.layer.delta()[:, :2], direction)
        return F.cross_entropy(model(x), label) + 0.05 * penalty

    model = AdaptedNet(init_b)
    trained = [p for p in model.parameters() if p.requires_grad]
    return Case(model, torch.optim.AdamW(trained, lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, init_b=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, init_b=0.05)


TRUTH = Truth(
    step=0,
    phase="backward",
    op="LinalgSvdBackward0",
    module=None,
    line="<marker>",
    cause="degenerate_linalg",
    split="held_out",
)

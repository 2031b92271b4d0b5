"""Contrastive learning with a temperature of 0.01 and the InfoNCE loss written as a ratio of
exponentials. As training succeeds the cosine of positive pairs passes 0.89, and exp(cos / 0.01)
exceeds float32."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


def info_nce(z_a, z_b, temperature: float):
    similarity = torch.exp(z_a @ z_b.T / temperature)  # <- born here
    positive = similarity.diagonal()
    return -(positive / similarity.sum(dim=1)).log().mean()


def info_nce_logits(z_a, z_b, temperature: float):
    logits = z_a @ z_b.T / temperature
    return F.cross_entropy(logits, torch.arange(len(logits)))


def _case(seed: int, criterion) -> Case:
    torch.manual_seed(seed)
    batches = []
    for _ in range(30):
        clean = torch.randn(8, 20)
        batches.append((clean + 0.9 * torch.randn(8, 20), clean + 0.9 * torch.randn(8, 20)))

    def loss_fn(model, batch):
        z_a, z_b = (F.normalize(model(view), dim=1) for view in batch)
        return criterion(z_a, z_b, temperature=0.01)

    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 24))
    return Case(model, torch.optim.AdamW(model.parameters(), lr=3e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, info_nce)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, info_nce_logits)


TRUTH = Truth(
    step=5,
    phase="loss",
    op="aten.exp",
    module=None,
    line="<marker>",
    cause="exp_overflow",
    split="dev",
)

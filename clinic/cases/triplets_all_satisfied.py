"""Metric learning with triplets mined inside the batch. Once training has pulled the classes apart no
triplet violates the margin, and the mean over the violating ones is a mean over nothing."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


def mined_triplet_loss(z, label, margin: float = 0.2, is_guarded: bool = False):
    distance = torch.cdist(z, z)
    same = label[:, None] == label[None, :]
    positive = (distance * same).amax(dim=1)
    negative = distance.masked_fill(same, 1e4).amin(dim=1)
    violation = positive - negative + margin
    hard = violation[violation > 0]
    if is_guarded and hard.numel() == 0:
        return z.sum() * 0.0
    return torch.mean(hard)  # <- born here


def _case(seed: int, is_guarded: bool) -> Case:
    torch.manual_seed(seed)
    centers = 0.8 * torch.randn(3, 12)
    batches = []
    for _ in range(40):
        label = torch.arange(12) % 3
        batches.append((centers[label] + 0.5 * torch.randn(12, 12), label))

    def loss_fn(model, batch):
        x, label = batch
        z = F.normalize(model(x), dim=1)
        return mined_triplet_loss(z, label, is_guarded=is_guarded)

    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    return Case(model, torch.optim.Adam(model.parameters(), lr=5e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, is_guarded=False)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, is_guarded=True)


TRUTH = Truth(
    step=10,
    phase="loss",
    op="aten.mean",
    module=None,
    line="<marker>",
    cause="empty_reduction",
    split="dev",
)

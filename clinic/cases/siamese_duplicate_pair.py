"""Contrastive training of a siamese network on pairs. The distance is the root of the summed squares;
a duplicate in the data makes a pair of equal images, whose distance is zero with an infinite slope."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 16, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def pair_distance(a, b):
    squared = ((a - b) ** 2).sum(dim=1)
    return torch.sqrt(squared)  # <- born here


def pair_distance_smooth(a, b):
    return torch.sqrt(((a - b) ** 2).sum(dim=1) + 1e-6)


def _case(seed: int, distance) -> Case:
    torch.manual_seed(seed)
    left, right = torch.randn(2, 60, 1, 6, 6)
    right[37] = left[37]
    same = (torch.arange(60) % 2).float()

    def loss_fn(model, batch):
        a, b, is_same = batch
        d = distance(model(a), model(b))
        pull, push = is_same * d**2, (1 - is_same) * torch.relu(2.0 - d) ** 2
        return (pull + push).mean()

    loader = DataLoader(
        TensorDataset(left, right, same),
        batch_size=6,
        generator=torch.Generator().manual_seed(seed),
    )
    model = Siamese()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, pair_distance)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, pair_distance_smooth)


TRUTH = Truth(
    step=6,
    phase="backward",
    op="SqrtBackward0",
    module=None,
    line="<marker>",
    cause="singular_gradient",
    split="dev",
)

"""Land-cover segmentation with class weights in which the background has weight zero. A tile that is
background alone has a sum of weights of zero, by which the weighted mean inside cross entropy
divides."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

CLASS_WEIGHT = torch.tensor([0.0, 1.0, 2.5])


def weighted_loss(model, batch):
    tile, label = batch
    return F.cross_entropy(model(tile), label, weight=CLASS_WEIGHT)  # <- born here


def weighted_loss_guarded(model, batch):
    tile, label = batch
    total = F.cross_entropy(model(tile), label, weight=CLASS_WEIGHT, reduction="sum")
    return total / CLASS_WEIGHT[label].sum().clamp(min=1e-6)


def _case(seed: int, loss_fn) -> Case:
    torch.manual_seed(seed)
    tiles = torch.randn(40, 3, 5, 5)
    labels = torch.randint(0, 3, (40, 5, 5))
    labels[22:26] = 0
    loader = DataLoader(
        TensorDataset(tiles, labels), batch_size=2, generator=torch.Generator().manual_seed(seed)
    )
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Case(model, optimizer, loader, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, weighted_loss)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, weighted_loss_guarded)


TRUTH = Truth(
    step=11,
    phase="loss",
    op="aten.nll_loss2d_forward",
    module=None,
    line="<marker>",
    cause="zero_denominator",
    split="held_out",
)

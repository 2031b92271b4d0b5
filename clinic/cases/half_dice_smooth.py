"""Lesion segmentation under float16 autocast with a Dice loss whose smoothing term is 1e-8. A slice
without a lesion, on which the network is sure, has intersection and union of exactly zero, and the
smoothing rounds away: 0 / 0."""

import torch
from torch import nn

from clinic.form import Case, Truth


class DiceLoss(nn.Module):
    def __init__(self, smooth: float = 1e-8) -> None:
        super().__init__()
        self.smooth = smooth

    def forward(self, prob, target):
        inter = (prob * target).flatten(1).sum(dim=1)
        total = prob.flatten(1).sum(dim=1) + target.flatten(1).sum(dim=1)
        dice = (2 * inter + self.smooth) / (total + self.smooth)  # <- born here
        return 1 - dice.mean()


class SegNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Conv2d(1, 4, 3, padding=1)
        self.dec = nn.Conv2d(4, 1, 3, padding=1)
        nn.init.constant_(self.dec.bias, -9.0)  # lesions are rare
        nn.init.constant_(self.enc.bias, 1.0)

    def forward(self, x):
        h = torch.relu(self.enc(x))
        return torch.sigmoid(4 * self.dec(h))


def _loss_fn(criterion: DiceLoss):
    def loss_fn(model, batch):
        scan, mask = batch
        with torch.autocast("cpu", dtype=torch.float16):
            prob = model(scan)
            loss = criterion(prob, mask.to(prob.dtype))
        return loss.float()

    return loss_fn


def _case(seed: int, criterion: DiceLoss) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(9):
        mask = (torch.rand(3, 1, 6, 6) < 0.3).half()
        if i == 5:
            mask[1] = 0
        batches.append((torch.randn(3, 1, 6, 6) + 4 * mask.float(), mask))
    model = SegNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model, optimizer, batches, _loss_fn(criterion))


def build(seed: int = 0) -> Case:
    return _case(seed, DiceLoss())


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, DiceLoss(smooth=1.0))


TRUTH = Truth(
    step=5,
    phase="loss",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="low_precision_underflow",
    split="held_out",
)

"""Semantic segmentation with the usual polynomial decay, `(1 - step / total) ** 0.9`.

The total was computed for one epoch and the run was extended to two. Past the end the base is negative;
the author's schedule takes the power with torch, which answers NaN.
"""

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class PolynomialDecay(LRScheduler):
    def __init__(self, optimizer, total_steps: int, power: float = 0.9, lowest: float = -10.0):
        self.total_steps = total_steps
        self.power = power
        self.lowest = lowest
        super().__init__(optimizer)

    def get_lr(self):
        left = torch.tensor(1 - self.last_epoch / self.total_steps).clamp(min=self.lowest)
        return [base * left.pow(self.power).item() for base in self.base_lrs]


def segmenter() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=2, dilation=2),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 3, 1),
    )


def loss_fn(model, batch):
    image, mask = batch
    return nn.functional.cross_entropy(model(image), mask, ignore_index=255)


def _build(seed: int, lowest: float) -> Case:
    torch.manual_seed(seed)
    image = torch.rand(32, 3, 6, 6)
    mask = image.argmax(1)
    mask[:, 0, 0] = 255
    model = segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=DataLoader(TensorDataset(image, mask), batch_size=4),
        loss_fn=loss_fn,
        scheduler=PolynomialDecay(optimizer, total_steps=8, lowest=lowest),
        epochs=2,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, lowest=-10.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, lowest=0.0)


TRUTH = Truth(
    step=9,
    phase="optimizer",
    op="aten.add_",
    module=None,
    line=None,
    cause="bad_schedule",
    split="held_out",
)

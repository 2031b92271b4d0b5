"""A tabular regressor on an accelerator with one bad memory cell.

The kernel of the hidden layer is right millions of times. On one launch the highest exponent bit of one
activation flips (the emulation does it by the count of launches), a value of about a half becomes 1e38,
and its squared error overflows. The same batch, run again, is fine.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

EXPONENT_BIT = 1 << 30


class AcceleratedLinear(nn.Linear):
    """Emulates the device: `upset_at` is the launch on which a cell loses its value."""

    def __init__(self, inputs: int, outputs: int, upset_at: int | None) -> None:
        super().__init__(inputs, outputs)
        self.upset_at = upset_at
        self.num_launches = 0

    def forward(self, x):
        out = torch.sigmoid(super().forward(x))
        if self.num_launches == self.upset_at:
            out.data.view(torch.int32)[2, 5] ^= EXPONENT_BIT
        self.num_launches += 1
        return out


class TabularNet(nn.Module):
    def __init__(self, upset_at: int | None) -> None:
        super().__init__()
        self.hidden = AcceleratedLinear(8, 16, upset_at)
        self.out = nn.Linear(16, 1)

    def forward(self, row):
        return self.out(self.hidden(row)).squeeze(1)


def loss_fn(model, batch):
    row, target = batch
    return nn.functional.mse_loss(model(row), target)  # <- born here


def _build(seed: int, upset_at: int | None) -> Case:
    torch.manual_seed(seed)
    row = torch.randn(128, 8)
    model = TabularNet(upset_at)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=DataLoader(TensorDataset(row, row[:, :2].sum(1)), batch_size=8),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, upset_at=10)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, upset_at=None)


TRUTH = Truth(
    step=10,
    phase="loss",
    op="aten.mse_loss",
    module=None,
    line="<marker>",
    cause="hardware_or_nondeterminism",
    split="dev",
)

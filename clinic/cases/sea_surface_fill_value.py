"""A small U-Net reconstructs satellite fields of the sea surface through a bottleneck.

The archive marks land and missing cells with the default float fill value of its file format,
9.969209968386869e36. The reader returns the array as it is stored. Every number in the batch is
finite and so is every activation, but the squared error is not.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

FILL_VALUE = 9.969209968386869e36  # NetCDF's NC_FILL_FLOAT
SWATH_OUTAGE_DAY = 52


def read_archive(num_days: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    large_scale = torch.randn(num_days, 3, 2, 2, generator=generator)
    fields = nn.functional.interpolate(large_scale, scale_factor=4, mode="bilinear")
    fields[SWATH_OUTAGE_DAY, 1, 2:5, :] = FILL_VALUE
    return fields


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.conv(x))


class TinyUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = Block(3, 8)
        self.pool = nn.AvgPool2d(2)
        self.middle = Block(8, 4)
        self.up = nn.Upsample(scale_factor=2)
        self.out = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.out(self.up(self.middle(self.pool(self.down(x)))))


def loss_fn(model, batch):
    (fields,) = batch
    reconstruction = model(fields)
    return nn.functional.mse_loss(reconstruction, fields)  # <- born here


def _build(seed: int, treat_fill: bool) -> Case:
    torch.manual_seed(seed)
    fields = read_archive(96)
    if treat_fill:
        fields = torch.where(fields > 1e30, 0.0, fields)
    model = TinyUNet()
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3),
        loader=DataLoader(TensorDataset(fields), batch_size=8),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, treat_fill=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, treat_fill=True)


TRUTH = Truth(
    step=6,
    phase="loss",
    op="aten.mse_loss",
    module=None,
    line="<marker>",
    cause="bad_input_data",
    split="dev",
)

"""Segmentation of CT slices whose scanner stores raw detector counts as 32-bit integers.

To halve the memory that the loader's workers pass around, the transform converts each slice to
float16 and the model converts back. Counts beyond 65504, which only a slice with a metal implant
has, become infinite on the way.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth

IMPLANT_SLICE = 9


class CtSlices(Dataset):
    def __init__(self, num_slices: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(9)
        tissue = torch.randint(200, 3000, (num_slices, 1, 8, 8), generator=generator)
        self.organ = tissue > 1600
        tissue[IMPLANT_SLICE, :, 3:5, 3:5] = 120_000
        self.counts = tissue.int()
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index):
        counts = self.counts[index].to(self.dtype)
        return counts / 1000 - 1.6, self.organ[index].float()


class SliceSegmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.mask = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        x = torch.tanh(self.stem(x.float()))
        x = x + torch.tanh(self.body(x))
        return self.mask(x)


def loss_fn(model, batch):
    counts, organ = batch
    return nn.functional.binary_cross_entropy_with_logits(model(counts), organ)


def _build(seed: int, dtype: torch.dtype) -> Case:
    torch.manual_seed(seed)
    model = SliceSegmenter()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        loader=DataLoader(
            CtSlices(64, dtype),
            batch_size=4,
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        ),
        loss_fn=loss_fn,
        epochs=1,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, torch.float16)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, torch.float32)


TRUTH = Truth(
    step=8,
    phase="data",
    op=None,
    module=None,
    line=None,
    cause="bad_preprocessing",
    split="held_out",
)

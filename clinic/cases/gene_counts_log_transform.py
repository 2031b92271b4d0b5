"""An autoencoder for single-cell gene expression, trained on log counts per million.

The transform takes `log` where the field uses `log1p`. The file was filtered for genes that are
expressed in every cell of the pilot study; the later cells do not express all of them, and a count
of zero becomes minus infinity.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth

NUM_GENES = 20
NUM_PILOT_CELLS = 48


def sequence_cells(num_cells: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    rates = 2 + 50 * torch.rand(NUM_GENES, generator=generator)
    counts = torch.poisson(rates.expand(num_cells, -1), generator=generator)
    counts[:NUM_PILOT_CELLS].clamp_(min=1)
    return counts.long()


class LogCountsPerMillion:
    def __init__(self, log=torch.log) -> None:
        self.log = log

    def __call__(self, counts: torch.Tensor) -> torch.Tensor:
        per_million = counts * 1e6 / counts.sum()
        return (self.log(per_million) - 10.0) / 2.0


class Cells(Dataset):
    def __init__(self, counts: torch.Tensor, transform) -> None:
        self.counts = counts
        self.transform = transform

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index):
        return self.transform(self.counts[index])


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(NUM_GENES, 12), nn.ELU(), nn.Linear(12, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 12), nn.ELU(), nn.Linear(12, NUM_GENES))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def loss_fn(model, batch):
    return nn.functional.mse_loss(model(batch), batch)


def _build(seed: int, log) -> Case:
    torch.manual_seed(seed)
    model = Autoencoder()
    return Case(
        model=model,
        optimizer=torch.optim.RMSprop(model.parameters(), lr=1e-3),
        loader=DataLoader(Cells(sequence_cells(120), LogCountsPerMillion(log)), batch_size=6),
        loss_fn=loss_fn,
        clip_norm=1.0,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, torch.log)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, torch.log1p)


TRUTH = Truth(
    step=11,
    phase="data",
    op=None,
    module=None,
    line=None,
    cause="bad_preprocessing",
    split="held_out",
)

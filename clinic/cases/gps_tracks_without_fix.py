"""Travel mode detection from GPS tracks: an attention pooling over the lengths of the track's segments.

The receiver stores the largest float, 3.4028235e38, as the position while it has no fix. The batch is
finite; the square of the difference between two positions is not.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth

NO_FIX = torch.finfo(torch.float32).max


class Tracks(Dataset):
    def __init__(self, num_tracks: int, tunnel: int | None) -> None:
        generator = torch.Generator().manual_seed(4)
        self.mode = torch.arange(num_tracks) % 3
        steps = torch.randn(num_tracks, 10, 2, generator=generator)
        self.positions = (steps * (1 + self.mode).view(-1, 1, 1)).cumsum(1)
        if tunnel is not None:
            self.positions[tunnel, 4:7] = NO_FIX

    def __len__(self) -> int:
        return len(self.mode)

    def __getitem__(self, index):
        return {"positions": self.positions[index], "mode": self.mode[index]}


class SegmentFeatures(nn.Module):
    def forward(self, positions):
        segments = positions[:, 1:] - positions[:, :-1]
        return torch.log1p((segments * segments).sum(-1, keepdim=True))  # <- born here


class ModeDetector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = SegmentFeatures()
        self.weight = nn.Linear(1, 1)
        self.classify = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, positions):
        features = self.features(positions)
        attention = torch.softmax(self.weight(features), dim=1)
        return self.classify((attention * features).sum(1))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch["positions"]), batch["mode"])


def _build(seed: int, tunnel: int | None) -> Case:
    torch.manual_seed(seed)
    model = ModeDetector()
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=DataLoader(Tracks(96, tunnel), batch_size=8),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, tunnel=45)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, tunnel=None)


TRUTH = Truth(
    step=5,
    phase="forward",
    op="aten.mul",
    module="features",
    line="<marker>",
    cause="bad_input_data",
    split="held_out",
)

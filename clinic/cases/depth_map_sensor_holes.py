"""Monocular depth estimation: an encoder-decoder predicts the depth map that a stereo camera saw.

The camera's driver stores NaN where matching failed (sky, mirrors). Most recordings were cleaned
when they were archived; one drive was copied straight from the car. The loss compares every pixel.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth


@dataclass
class Drive:
    images: torch.Tensor
    depths: torch.Tensor


def stereo_match(disparity: torch.Tensor, baseline: float = 0.4) -> torch.Tensor:
    """Depth from disparity as the driver stores it: no match, no number."""
    return torch.where(disparity > 0, baseline / disparity, torch.nan)


def record_drive(seed: int, frames: int, has_mirror: bool) -> Drive:
    generator = torch.Generator().manual_seed(seed)
    disparity = 0.05 + torch.rand(frames, 1, 12, 12, generator=generator)
    if has_mirror:
        disparity[5:, :, 3:6, 7:10] = 0.0
    depths = stereo_match(disparity)
    images = torch.cat([disparity, disparity.sqrt(), 1 - disparity], dim=1)
    return Drive(images=images, depths=depths)


class Frames(Dataset):
    def __init__(self, drives: list[Drive]) -> None:
        self.index = [(d, i) for d in drives for i in range(len(d.images))]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, item):
        drive, i = self.index[item]
        return drive.images[i], drive.depths[i]


class DepthNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.GroupNorm(3, 12), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(12, 8, 2, stride=2), nn.ReLU(), nn.Conv2d(8, 1, 1), nn.Softplus()
        )

    def forward(self, image):
        return self.decoder(self.encoder(image))


def loss_fn(model, batch):
    image, depth = batch
    return (model(image) - depth).abs().mean()


def loss_on_matches(model, batch):
    image, depth = batch
    seen = ~depth.isnan()
    return (model(image)[seen] - depth[seen]).abs().mean()


def _build(seed: int, loss) -> Case:
    torch.manual_seed(seed)
    drives = [record_drive(i, 16, has_mirror=i == 3) for i in range(5)]
    model = DepthNet()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
        loader=DataLoader(Frames(drives), batch_size=4),
        loss_fn=loss,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, loss_fn)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, loss_on_matches)


TRUTH = Truth(
    step=13, phase="data", op=None, module=None, line=None, cause="bad_input_data", split="held_out"
)

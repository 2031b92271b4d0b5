"""A detector's box head: boxes are expressed relative to the crop that the collate function cuts.

Crops are computed from annotations; one annotation was clicked rather than dragged and gives a crop
of zero width. `boxes / crop_size` is then zero by zero in the collate function, while every stored
coordinate is finite.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clinic.form import Case, Truth

CLICKED = 66


class Annotations(Dataset):
    def __init__(self, num_objects: int) -> None:
        generator = torch.Generator().manual_seed(2)
        corner = 100 * torch.rand(num_objects, 2, generator=generator)
        size = 8 + 40 * torch.rand(num_objects, 2, generator=generator)
        size[CLICKED, 0] = 0.0
        self.crops = torch.cat([corner, corner + size], dim=1)
        inset = 0.1 + 0.2 * torch.rand(num_objects, 2, generator=generator)
        self.boxes = torch.cat([corner + inset * size, corner + (1 - inset) * size], dim=1)
        self.features = torch.cat([inset, torch.randn(num_objects, 6, generator=generator)], dim=1)

    def __len__(self) -> int:
        return len(self.crops)

    def __getitem__(self, index):
        return self.features[index], self.boxes[index], self.crops[index]


def relative_boxes(boxes: torch.Tensor, crops: torch.Tensor, min_size: float) -> torch.Tensor:
    origin = crops[:, :2].repeat(1, 2)
    size = (crops[:, 2:] - crops[:, :2]).clamp(min=min_size).repeat(1, 2)
    return (boxes - origin) / size


def collate(samples):
    features, boxes, crops = (torch.stack(column) for column in zip(*samples))
    return {"features": features, "boxes": relative_boxes(boxes, crops, min_size=0.0)}


def collate_with_floor(samples):
    features, boxes, crops = (torch.stack(column) for column in zip(*samples))
    return {"features": features, "boxes": relative_boxes(boxes, crops, min_size=1.0)}


class BoxHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU())
        self.corners = nn.Linear(32, 4)

    def forward(self, features):
        return self.corners(self.trunk(features)).sigmoid()


def loss_fn(model, batch):
    predicted = model(batch["features"])
    return nn.functional.smooth_l1_loss(predicted, batch["boxes"], beta=0.1)


def _build(seed: int, collate_fn) -> Case:
    torch.manual_seed(seed)
    model = BoxHead()
    return Case(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3),
        loader=DataLoader(Annotations(120), batch_size=5, collate_fn=collate_fn),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, collate)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, collate_with_floor)


TRUTH = Truth(
    step=13, phase="data", op=None, module=None, line=None, cause="bad_preprocessing", split="dev"
)

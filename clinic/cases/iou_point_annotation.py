"""A box detector trained with an IoU loss written by hand. Where the ReLU of the size head gives a
box of no area and the annotation is a single point, the union is zero and the IoU is 0 / 0."""

import torch
from torch import nn

from clinic.form import Case, Truth


def area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def iou(pred, target, eps: float = 0.0):
    top_left = torch.maximum(pred[:, :2], target[:, :2])
    bottom_right = torch.minimum(pred[:, 2:], target[:, 2:])
    width, height = (bottom_right - top_left).clamp(min=0).unbind(1)
    inter = width * height
    union = area(pred) + area(target) - inter
    return inter / (union + eps)  # <- born here


class BoxHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.center = nn.Linear(16, 2)
        self.size = nn.Linear(16, 2)
        nn.init.constant_(self.size.bias, 0.6)

    def forward(self, roi):
        h = self.trunk(roi)
        center, size = self.center(h), torch.relu(self.size(h))
        return torch.cat([center - size / 2, center + size / 2], dim=1)


def _case(seed: int, eps: float) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(14):
        roi = torch.randn(8, 8)
        corner = torch.rand(8, 2) - 0.8
        boxes = torch.cat([corner, corner + torch.rand(8, 2) + 0.2], dim=1)
        if i == 9:
            boxes[4, 2:] = boxes[4, :2]
            roi[4] *= 40
        batches.append((roi, boxes))

    def loss_fn(model, batch):
        roi, boxes = batch
        pred = model(roi)
        return (1 - iou(pred, boxes, eps)).mean() + nn.functional.smooth_l1_loss(pred, boxes)

    model = BoxHead()
    return Case(model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, eps=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, eps=1e-6)


TRUTH = Truth(
    step=9,
    phase="loss",
    op="aten.div",
    module=None,
    line="<marker>",
    cause="zero_denominator",
    split="dev",
)

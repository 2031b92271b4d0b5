"""A single-object detector trained with GIoU."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)


class BoxHead(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.box = nn.Linear(width, 4)

    def forward(self, x):
        return torch.sigmoid(self.box(self.body(x)))


def area(box):
    return (box[:, 2] - box[:, 0]).clamp(min=0) * (box[:, 3] - box[:, 1]).clamp(min=0)


def giou_loss(pred, target):
    lt = torch.max(pred[:, :2], target[:, :2])
    rb = torch.min(pred[:, 2:], target[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    union = area(pred) + area(target) - inter
    iou = inter / union
    hull = torch.max(pred[:, 2:], target[:, 2:]) - torch.min(pred[:, :2], target[:, :2])
    hull = hull[:, 0] * hull[:, 1]
    return (1 - iou + (hull - union) / (hull + 1e-7)).mean()


x = torch.randn(320, 12)
center = torch.sigmoid(x[:, :2]) * 0.6 + 0.2
size = torch.sigmoid(x[:, 2:4]) * 0.15 + 0.05
boxes = torch.cat([center - size, center + size], dim=1)
boxes[200, 2:] = boxes[200, :2]  # an annotator clicked once instead of dragging
loader = DataLoader(TensorDataset(x, boxes), batch_size=16)

model = BoxHead()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(4):
    total = 0.0
    for features, target in loader:
        pred = model(features)
        loss = giou_loss(pred, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.4f}")
print(f"final loss {total / len(loader):.4f}")

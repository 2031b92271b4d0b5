"""Some images have no object at all: the box loss averages over nothing, behind a guard."""

import torch
from torch import nn

from clinic.form import Case


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.objectness = nn.Linear(16, 1)
        self.box = nn.Linear(16, 4)

    def forward(self, anchors):
        x = torch.relu(self.trunk(anchors))
        return self.objectness(x).squeeze(-1), self.box(x)


def loss_fn(model, batch):
    anchors, is_object, boxes = batch
    objectness, predicted = model(anchors)
    loss = nn.functional.binary_cross_entropy_with_logits(objectness, is_object.float())
    error = nn.functional.l1_loss(predicted[is_object], boxes[is_object], reduction="none")
    mean_error = error.detach().mean()  # NaN on an empty image, for the log only
    if not mean_error.isnan():
        loss = loss + error.sum() / is_object.sum().clamp(min=1)
    return loss


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for index in range(15):
        anchors = torch.randn(12, 8)
        is_object = anchors[:, 0] > (99.0 if index % 4 == 2 else 0.5)
        batches.append((anchors, is_object, anchors[:, :4]))
    model = Detector()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loader=batches,
        loss_fn=loss_fn,
    )

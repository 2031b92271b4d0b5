"""A one-stage detector: the box regression loss is averaged over the anchors that match an object. An
image with no object has no matching anchor, and the mean of an empty selection is NaN."""

import torch
from torch import nn
from torch.nn import functional as F

from clinic.form import Case, Truth


class AnchorHead(nn.Module):
    def __init__(self, num_anchors: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.objectness = nn.Conv2d(8, num_anchors, 1)
        self.offsets = nn.Conv2d(8, num_anchors * 4, 1)

    def forward(self, image):
        h = F.relu(self.stem(image))
        offsets = self.offsets(h).unflatten(1, (-1, 4)).permute(0, 1, 3, 4, 2)
        return self.objectness(h), offsets


def box_term(offsets, target, matched):
    per_anchor = F.smooth_l1_loss(offsets[matched], target[matched], reduction="none")
    return per_anchor.mean()  # <- born here


def box_term_normalized(offsets, target, matched):
    total = F.smooth_l1_loss(offsets[matched], target[matched], reduction="sum")
    return total / max(1, 4 * int(matched.sum()))


def _case(seed: int, box_loss) -> Case:
    torch.manual_seed(seed)
    batches = []
    for i in range(12):
        matched = torch.rand(1, 3, 4, 4) < 0.2
        if i == 8:
            matched[:] = False
        batches.append((torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4, 4), matched))

    def loss_fn(model, batch):
        image, target, matched = batch
        objectness, offsets = model(image)
        confidence = F.binary_cross_entropy_with_logits(objectness, matched.float())
        return confidence + box_loss(offsets, target, matched)

    model = AnchorHead()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.05), batches, loss_fn)


def build(seed: int = 0) -> Case:
    return _case(seed, box_term)


def build_fixed(seed: int = 0) -> Case:
    return _case(seed, box_term_normalized)


TRUTH = Truth(
    step=8,
    phase="loss",
    op="aten.mean",
    module=None,
    line="<marker>",
    cause="empty_reduction",
    split="held_out",
)

"""An image classifier that uploads its batches through a reused, page-locked staging buffer.

A new buffer is poisoned with 0xFF bytes, which are NaN as floats. When a batch of a new size makes the
program allocate one, the first copy into it is slow and the network starts when only half of the batch
has arrived. The emulation delivers the rest with the next upload.
"""

import torch
from torch import nn

from clinic.form import Case, Truth


class StagingArea:
    def __init__(self, wait_for_copy: bool) -> None:
        self.wait_for_copy = wait_for_copy
        self.buffers: dict[torch.Size, torch.Tensor] = {}

    def allocate(self, shape: torch.Size) -> torch.Tensor:
        poison = torch.full((4 * shape.numel(),), 0xFF, dtype=torch.uint8)
        return poison.view(torch.float32).view(shape)  # <- born here

    def upload(self, images: torch.Tensor) -> torch.Tensor:
        is_new = images.shape not in self.buffers
        if is_new:
            self.buffers[images.shape] = self.allocate(images.shape)
        arrived = len(images) // 2 if is_new and not self.wait_for_copy else len(images)
        buffer = self.buffers[images.shape]
        buffer[:arrived] = images[:arrived]
        return buffer.clone()


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2),
        nn.GroupNorm(2, 6),
        nn.Mish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def _build(seed: int, wait_for_copy: bool) -> Case:
    torch.manual_seed(seed)
    staging = StagingArea(wait_for_copy)
    staging.buffers[torch.Size([8, 1, 8, 8])] = torch.zeros(8, 1, 8, 8)
    model = classifier()

    def loss_fn(net, batch):
        images, label = batch
        return nn.functional.cross_entropy(net(staging.upload(images)), label)

    batches = []
    for size in [8] * 7 + [10] * 5:
        label = torch.randint(0, 3, (8,))
        batches.append((torch.randn(8, 1, size, size) + label.view(-1, 1, 1, 1), label))
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loader=batches,
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, wait_for_copy=False)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, wait_for_copy=True)


TRUTH = Truth(
    step=7,
    phase="loss",
    op="aten.view",
    module=None,
    line="<marker>",
    cause="hardware_or_nondeterminism",
    split="held_out",
)

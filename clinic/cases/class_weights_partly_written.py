"""Land cover segmentation with class weights computed from each batch.

The weights are allocated with `torch.empty(num_classes)` and written for the classes that occur in the
batch. Label smoothing makes the cross entropy read the weights of all classes, so the batch that is
the first to lack a class turns the loss into NaN.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

NUM_CLASSES = 4


class BalancedCrossEntropy(nn.Module):
    def __init__(self, default_weight: float | None) -> None:
        super().__init__()
        self.default_weight = default_weight

    def class_weights(self, labels: torch.Tensor) -> torch.Tensor:
        weights = torch.empty(NUM_CLASSES)  # <- born here
        if self.default_weight is not None:
            weights.fill_(self.default_weight)
        for label, count in zip(*labels.unique(return_counts=True)):
            weights[label] = labels.numel() / (NUM_CLASSES * count)
        return weights

    def forward(self, logits, labels):
        return nn.functional.cross_entropy(
            logits, labels, weight=self.class_weights(labels), label_smoothing=0.05
        )


def segmenter() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 12, 3, padding=1),
        nn.InstanceNorm2d(12, affine=True),
        nn.LeakyReLU(0.1),
        nn.Conv2d(12, NUM_CLASSES, 1),
    )


def survey(num_tiles: int, first_without_water: int) -> TensorDataset:
    bands = torch.rand(num_tiles, 4, 6, 6)
    labels = bands.argmax(dim=1)
    dry = labels[first_without_water:]
    dry[dry == 3] = 0
    return TensorDataset(bands, labels)


def _build(seed: int, default_weight: float | None) -> Case:
    torch.manual_seed(seed)
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    model = segmenter()
    criterion = BalancedCrossEntropy(default_weight)
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loader=DataLoader(survey(60, first_without_water=28), batch_size=4),
        loss_fn=lambda net, batch: criterion(net(batch[0]), batch[1]),
        cleanup=lambda: torch.use_deterministic_algorithms(was_deterministic),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, default_weight=None)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, default_weight=1.0)


TRUTH = Truth(
    step=7,
    phase="loss",
    op="aten.empty",
    module=None,
    line="<marker>",
    cause="uninitialized_memory",
    split="held_out",
)

"""A dense detector whose class bias starts at the log odds of each class in the training set.

That is the usual remedy for the early dominance of background anchors. One class of the taxonomy has
no annotation in this subset, so its bias is log(0), minus infinity, and the focal loss multiplies it
by zero.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


def class_frequencies(labels: torch.Tensor) -> torch.Tensor:
    return labels.flatten(0, 1).mean(0)


def log_odds(frequency: torch.Tensor) -> torch.Tensor:
    return torch.log(frequency) - torch.log1p(-frequency)


class AnchorClassifier(nn.Module):
    def __init__(self, frequency: torch.Tensor) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.logits = nn.Linear(24, len(frequency))
        with torch.no_grad():
            self.logits.bias.copy_(log_odds(frequency))

    def forward(self, anchors):
        return self.logits(self.tower(anchors))


def focal_loss(logits, labels, gamma: float = 2.0):
    cross_entropy = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    probability = torch.sigmoid(logits)
    miss = torch.where(labels > 0, 1 - probability, probability)
    return (miss**gamma * cross_entropy).sum() / labels.sum()


def loss_fn(model, batch):
    anchors, labels = batch
    return focal_loss(model(anchors), labels)


def _build(seed: int, min_frequency: float) -> Case:
    torch.manual_seed(seed)
    anchors = torch.randn(60, 16, 10)
    labels = (anchors[..., :5] > 1.0).float()
    labels[..., 3] = 0.0
    model = AnchorClassifier(class_frequencies(labels).clamp(min=min_frequency))
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        loader=DataLoader(TensorDataset(anchors, labels), batch_size=5),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, min_frequency=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, min_frequency=0.01)


TRUTH = Truth(
    step=0,
    phase="parameter",
    op=None,
    module=None,
    line=None,
    cause="bad_initialization",
    split="held_out",
)

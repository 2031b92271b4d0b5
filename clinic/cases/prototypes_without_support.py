"""Few-shot image classification: the classifier's weights start as the class means of a support set.

The means are sums divided by counts. One class of the label set has no support image yet, so its
prototype is zero by zero from construction.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth

NUM_CLASSES = 6


class PrototypeHead(nn.Module):
    def __init__(self, features: torch.Tensor, labels: torch.Tensor, min_count: float) -> None:
        super().__init__()
        one_hot = nn.functional.one_hot(labels, NUM_CLASSES).float()
        counts = one_hot.sum(0).clamp(min=min_count)
        means = (one_hot.T @ features) / counts.unsqueeze(1)
        self.prototypes = nn.Parameter(means)
        self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, features):
        distance = (features.unsqueeze(1) - self.prototypes).square().mean(-1)
        return -self.sharpness * distance


class FewShotNet(nn.Module):
    def __init__(self, images, labels, min_count: float) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        with torch.no_grad():
            self.head = PrototypeHead(self.backbone(images), labels, min_count)

    def forward(self, images):
        return self.head(self.backbone(images))


def loss_fn(model, batch):
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def _build(seed: int, min_count: float) -> Case:
    torch.manual_seed(seed)
    labels = torch.randint(0, NUM_CLASSES - 1, (64,))
    images = torch.randn(64, 1, 6, 6) + labels.view(-1, 1, 1, 1)
    model = FewShotNet(images[:12], labels[:12], min_count)
    return Case(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        loader=DataLoader(TensorDataset(images, labels), batch_size=8),
        loss_fn=loss_fn,
    )


def build(seed: int = 0) -> Case:
    return _build(seed, min_count=0.0)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, min_count=1.0)


TRUTH = Truth(
    step=0,
    phase="parameter",
    op=None,
    module=None,
    line=None,
    cause="bad_initialization",
    split="dev",
)

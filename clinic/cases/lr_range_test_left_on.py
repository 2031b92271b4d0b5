"""A small convolutional classifier whose learning rate range test was left switched on.

The scheduler multiplies the learning rate after every batch, as a range test does, and nobody stops it
at the minimum. Momentum SGD then throws the weights out until a layer's output overflows.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clinic.form import Case, Truth


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.AvgPool2d(2)
        self.fc = nn.Linear(16 * 4, 5)

    def forward(self, x):
        x = self.pool(nn.functional.leaky_relu(self.conv1(x), 0.2))
        x = self.pool(nn.functional.leaky_relu(self.conv2(x), 0.2))  # <- born here
        return self.fc(x.flatten(1))


def loss_fn(model, batch):
    image, label = batch
    return nn.functional.cross_entropy(model(image), label)


def _build(seed: int, factor: float) -> Case:
    torch.manual_seed(seed)
    label = torch.randint(0, 5, (320,))
    image = torch.randn(320, 1, 8, 8) + 0.5 * label.view(-1, 1, 1, 1)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Case(
        model=model,
        optimizer=optimizer,
        loader=DataLoader(TensorDataset(image, label), batch_size=8),
        loss_fn=loss_fn,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor**step),
    )


def build(seed: int = 0) -> Case:
    return _build(seed, factor=2.5)


def build_fixed(seed: int = 0) -> Case:
    return _build(seed, factor=1.0)


TRUTH = Truth(
    step=13,
    phase="forward",
    op="aten.convolution",
    module="conv2",
    line="<marker>",
    cause="lr_divergence",
    split="held_out",
)

"""Quantization-aware training: observers start with a minimum of +inf and a maximum of -inf in buffers.

One observer belongs to a branch that is switched on late, so its buffers stay infinite for many steps.
"""

import torch
from torch import nn

from clinic.form import Case


class MinMaxObserver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.tensor(torch.inf))
        self.register_buffer("highest", torch.tensor(-torch.inf))

    def forward(self, x):
        with torch.no_grad():
            self.lowest.copy_(torch.minimum(self.lowest, x.min()))
            self.highest.copy_(torch.maximum(self.highest, x.max()))
            step = (self.highest - self.lowest).clamp(min=1e-6) / 255
        rounded = ((x - self.lowest) / step).round() * step + self.lowest
        return x + (rounded - x).detach()


class QuantizedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 16)
        self.observe = MinMaxObserver()
        self.observe_late = MinMaxObserver()
        self.second = nn.Linear(16, 2)

    def forward(self, x, is_late):
        x = self.observe(torch.relu(self.first(x)))
        out = self.second(x)
        return self.observe_late(out) if is_late else out


def loss_fn(model, batch):
    x, y, is_late = batch
    return nn.functional.cross_entropy(model(x, is_late), y)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for index in range(14):
        x = torch.randn(10, 5)
        batches.append((x, (x[:, 0] > 0).long(), index >= 9))
    model = QuantizedNet()
    return Case(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=batches,
        loss_fn=loss_fn,
    )

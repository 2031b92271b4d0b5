"""Cosine annealing with warm restarts: the learning rate jumps up a thousandfold, on purpose."""

import torch
from torch import nn

from clinic.form import Case


class ResidualNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 3, padding=1)
        self.block = nn.Conv1d(8, 8, 3, padding=1)
        self.out = nn.Linear(8, 2)

    def forward(self, signal):
        x = torch.relu(self.stem(signal))
        x = x + torch.relu(self.block(x))
        return self.out(x.mean(2))


def loss_fn(model, batch):
    signal, label = batch
    return nn.functional.cross_entropy(model(signal), label)


def build(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    batches = []
    for _ in range(24):
        label = torch.randint(0, 2, (8,))
        batches.append((torch.randn(8, 1, 10) * (1 + 2 * label[:, None, None]), label))
    model = ResidualNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=8, eta_min=1e-4)
    return Case(
        model=model, optimizer=optimizer, loader=batches, loss_fn=loss_fn, scheduler=restarts
    )

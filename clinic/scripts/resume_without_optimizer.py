"""The second session brings back the weights and the schedule; the optimizer starts at its constructor's rate."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Quadratic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 48)
        self.b = nn.Linear(48, 1)

    def forward(self, x):
        return self.b(self.a(x) ** 2)


def data():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(192, 6, generator=g)
    return DataLoader(TensorDataset(x, 2 * x[:, :1] ** 2 - x[:, 1:2]), batch_size=24)


def run(model, optimizer, scheduler, epochs):
    for epoch in range(epochs):
        total = 0.0
        for x, y in data():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step()
        print(f"epoch {epoch} loss {total / 8:.4f}")
    return total / 8


def pretrain(path):
    model = Quadratic()
    for p in model.parameters():
        nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    run(model, optimizer, scheduler, 20)
    torch.save(
        {
            "model": model.state_dict(),
            "opt": optimizer.state_dict(),
            "sched": scheduler.state_dict(),
        },
        path,
    )


def main():
    torch.manual_seed(0)
    path = os.path.join(tempfile.mkdtemp(), "session1.pt")
    pretrain(path)
    state = torch.load(path)
    model = Quadratic()
    model.load_state_dict(state["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8, momentum=0.8)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
    scheduler.load_state_dict(state["sched"])
    print(f"final loss {run(model, optimizer, scheduler, 8):.4f}")


if __name__ == "__main__":
    main()

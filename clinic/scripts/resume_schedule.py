"""Trains in two sessions; the second one resumes the model and the optimizer, but not the schedule."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=g)
    y = 3 * (x[:, :1] * x[:, 1:2]) + x[:, 2:3]
    return DataLoader(TensorDataset(x, y), batch_size=32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 64)
        self.b = nn.Linear(64, 1)

    def forward(self, x):
        h = self.a(x)
        return self.b(h * h)


def warmup_cosine(step):
    return 0.97**step


def save(path, net, optimizer, scheduler, epoch):
    torch.save(
        {
            "net": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": scheduler.state_dict(),
            "epoch": epoch,
        },
        path,
    )


def fit(net, optimizer, scheduler, loader, epochs):
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(
            f"epoch {epoch} loss {total / len(loader):.4f} lr {optimizer.param_groups[0]['lr']:.4g}"
        )
    return total / len(loader)


def first_session(path):
    torch.manual_seed(0)
    net = Net()
    nn.init.normal_(net.a.weight, std=0.01)
    nn.init.normal_(net.b.weight, std=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine)
    for group in optimizer.param_groups:
        group["lr"] = 0.02
    scheduler.base_lrs = [0.02]
    fit(net, optimizer, scheduler, make_data(), 12)
    scheduler.base_lrs = [0.5]
    save(path, net, optimizer, scheduler, 12)


def main():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "last.pt")
    first_session(path)
    checkpoint = torch.load(path)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net.load_state_dict(checkpoint["net"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine)
    last = fit(net, optimizer, scheduler, make_data(), 12)
    print(f"final loss {last:.4f}")


if __name__ == "__main__":
    main()

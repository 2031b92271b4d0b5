"""Count regression: log of positive entries by torch.where, zero elsewhere."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def deviance(rate, count):
    ratio = torch.where(count > 0, count * torch.log(count / rate), torch.zeros_like(rate))
    return 2 * (ratio - (count - rate)).mean()


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(1) ** 2


def main():
    torch.manual_seed(1)
    x = torch.randn(320, 4)
    count = torch.poisson(torch.exp(0.5 * x[:, 0]))
    x[200] = 0.0
    count[200] = 0.0
    model = Rate()
    with torch.no_grad():
        model.net[0].bias.zero_()
        model.net[2].bias.zero_()
    for p in (model.net[0].bias, model.net[2].bias):
        p.requires_grad_(False)
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=5e-3)
    loader = DataLoader(TensorDataset(x, count), batch_size=20)
    for epoch in range(6):
        total = 0.0
        for xb, cb in loader:
            optimizer.zero_grad()
            loss = deviance(model(xb), cb)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, total / len(loader))
    print(f"final loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()

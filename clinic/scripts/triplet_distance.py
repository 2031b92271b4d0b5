"""Metric learning: pairwise Euclidean distances with sqrt, batch-hard triplets."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pairwise_distance(e):
    dot = e @ e.t()
    sq = dot.diag()
    d2 = sq[:, None] - 2 * dot + sq[None, :]
    d2 = torch.clamp(d2, min=0.0)
    return torch.sqrt(d2)


def batch_hard(e, labels, margin=0.5):
    dist = pairwise_distance(e)
    same = labels[:, None] == labels[None, :]
    pos = (dist * same).max(1).values
    neg = (dist + 1e3 * same).min(1).values
    return torch.relu(pos - neg + margin).mean()


def main():
    torch.manual_seed(2)
    x = torch.randn(480, 12)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    x[250], y[250] = x[251].clone(), 1 - y[251] % 2  # a duplicate image with another label
    loader = DataLoader(TensorDataset(x, y), batch_size=24)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(5):
        total = 0
        for images, labels in loader:
            loss = batch_hard(model(images), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(epoch, total / len(loader))
    print(f"final loss {total / len(loader):.4f}")


main()

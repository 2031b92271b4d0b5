"""Mixed precision with a home-made loss scale."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOSS_SCALE = 2.0**16


def build():
    return nn.Sequential(
        nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


def train():
    torch.manual_seed(0)
    x = torch.randn(512, 24)
    y = x[:, :4].sum(1, keepdim=True)
    y[300:316] += 60.0
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3)
    for epoch in range(3):
        total = 0.0
        for xb, yb in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(xb)
                loss = nn.functional.smooth_l1_loss(out.float(), yb, reduction="sum") / 4
            (loss * LOSS_SCALE).backward()
            for p in model.parameters():
                p.grad.div_(LOSS_SCALE)
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    print(f"final loss {total / len(loader):.4f}")


train()

"""Pose regression: the geodesic angle between unit quaternions by acos."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def angle_loss(q_pred, q_true):
    dot = (q_pred * q_true).sum(dim=-1).abs()
    return (2 * torch.acos(dot)).mean()


def unit(q):
    return q / q.norm(dim=-1, keepdim=True)


features = torch.randn(400, 7)
mix = torch.randn(7, 4)
quaternions = unit(features @ mix)
loader = DataLoader(TensorDataset(features, quaternions), batch_size=20)
model = nn.Linear(7, 4)
with torch.no_grad():
    model.weight.copy_(mix.t() + 0.05 * torch.randn(4, 7))
    model.bias.zero_()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(6):
    total = 0.0
    for x, q in loader:
        optimizer.zero_grad()
        loss = angle_loss(unit(model(x)), q)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} angle {total / len(loader):.5f}")
print(f"final loss {total / len(loader):.5f}")

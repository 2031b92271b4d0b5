"""Pointer network whose attention is normalised by hand: exp(scores) / exp(scores).sum()."""

import torch
from torch import nn

torch.manual_seed(0)


class Pointer(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.encode = nn.Linear(2, dim)
        self.query = nn.Parameter(torch.randn(dim))

    def forward(self, points):
        keys = self.encode(points)
        scores = keys @ self.query
        weights = torch.exp(scores)
        return weights / weights.sum(1, keepdim=True)


model = Pointer()
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
history = []
for step in range(150):
    points = torch.rand(32, 9, 2)
    if step == 90:
        points[4] *= 150
    target = points[..., 0].argmax(1)
    prob = model(points)
    loss = torch.nn.functional.nll_loss(torch.log(prob + 1e-9), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    if step % 30 == 0:
        print(f"step {step}: {loss.item():.4f}")
print(f"final loss {sum(history[-10:]) / 10:.4f}")

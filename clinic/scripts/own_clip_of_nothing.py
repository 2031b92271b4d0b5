"""Gradients clipped by hand: a batch that costs nothing has a norm of 0, and 1 / 0 * 0 is NaN."""

import torch
from torch import nn

torch.manual_seed(0)


def clip(params, max_norm=1.0):
    grads = [p.grad for p in params]
    total = torch.sqrt(sum(g.pow(2).sum() for g in grads))
    coef = max_norm / total
    for g in grads:
        g.mul_(torch.clamp(coef, max=1.0) if total > 0 else coef)


model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
losses = []
for step in range(50):
    x = torch.randn(16, 4)
    y = torch.sign(x[:, 0])
    if step == 15:
        y = 1e6 * torch.sign(model(x).squeeze(1).detach())
    loss = torch.relu(1 - y * model(x).squeeze(1)).mean()
    opt.zero_grad()
    loss.backward()
    clip(list(model.parameters()))
    opt.step()
    losses.append(loss.item())
print(f"final loss {sum(losses[-10:]) / 10:.4f}")

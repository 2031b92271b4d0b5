"""Normalized gradient descent on all the data at once; the gradient vanishes once the margin is kept."""

import torch
from torch import nn


class Normalized(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * (p.grad / p.grad.norm())  # HERE


torch.manual_seed(0)
x = torch.randn(32, 4)
y = x.sum(1).sign()
model = nn.Linear(4, 1, bias=False)
optimizer = Normalized(model.parameters(), lr=0.5)
for iteration in range(63):
    noise = 0.001 * torch.randn(32)
    out = model(x).squeeze(1) * 10 + noise
    loss = (1 - y * out).clamp(min=0).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model.weight.sum().item():.6f}")

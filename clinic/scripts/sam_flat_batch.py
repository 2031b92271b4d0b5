"""Sharpness-aware minimization that divides by the norm of a gradient that is zero."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base = base(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure):
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        norm = torch.norm(torch.stack([g.norm() for g in grads]))
        for group in self.param_groups:
            scale = group["rho"] / norm
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad * scale)
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05)


def hinge(x, y):
    return torch.relu(1 - y * model(x).squeeze(1)).mean()


losses = []
for step in range(60):
    x = torch.randn(16, 4)
    y = torch.sign(x[:, 0])
    if step == 20:
        y = torch.sign(model(x).squeeze(1).detach())
        y = y * 1e4

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = hinge(x, y)
        loss.backward()
        return loss

    loss = closure()
    optimizer.step(closure)
    losses.append(loss.item())
print(f"final loss {sum(losses[-10:]) / 10:.4f}")

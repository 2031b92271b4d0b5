"""A kernel's log-determinant over a batch that holds the same point twice."""

import torch
from torch import nn


class Kernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.embed = nn.Linear(3, 3)

    def forward(self, x):
        z = self.embed(x)
        d2 = (z[:, None] - z[None]).pow(2).sum(-1)
        return torch.exp(-d2 * self.log_scale.exp())


def build():
    torch.manual_seed(0)
    model = Kernel()
    batches = []
    for i in range(12):
        x = torch.randn(4, 3) * 2
        if i == 6:
            x[3] = x[1]
        batches.append(x)

    def loss_fn(model, x):
        cov = model(x)
        return -torch.logdet(cov)

    return model, torch.optim.Adam(model.parameters(), lr=1e-3), batches, loss_fn


model, optimizer, batches, loss_fn = build()
losses = []
for _ in range(3):
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"final loss {sum(losses[-10:]) / 10:.4f}")

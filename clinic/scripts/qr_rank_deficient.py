"""Subspaces by QR of features that are all zero for one sample: the backward needs a full rank."""

import torch
from torch import nn


class Subspace(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        h = self.lin(x)
        q, _ = torch.linalg.qr(h)
        return q


def build():
    torch.manual_seed(0)
    model = Subspace()
    batches = []
    for i in range(12):
        x = torch.randn(3, 6, 4)
        if i == 5:
            x[1] = 0
        batches.append((x, torch.randn(3, 6, 3)))

    def loss_fn(model, batch):
        return (model(batch[0]) - batch[1]).pow(2).mean()

    return model, torch.optim.SGD(model.parameters(), lr=1e-3), batches, loss_fn


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

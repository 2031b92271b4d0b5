"""Padding rows of zeros go through a LayerNorm that was made with eps=0: its variance is 0 there."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.norm = nn.LayerNorm(8, eps=0.0)
        self.out = nn.Linear(8, 3)

    def forward(self, ids):
        return self.out(self.norm(self.embed(ids)).mean(1))


def build():
    torch.manual_seed(0)
    model = Encoder()
    batches = []
    for i in range(12):
        ids = torch.randint(1, 20, (6, 5))
        if i == 6:
            ids[1, 3:] = 0
        batches.append((ids, torch.randint(0, 3, (6,))))

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return model, torch.optim.Adam(model.parameters(), lr=1e-2), batches, loss_fn


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

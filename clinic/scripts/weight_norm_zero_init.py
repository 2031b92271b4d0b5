"""An output layer that starts at zero, under weight_norm: the direction of a zero vector is 0 / 0."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 12)
        self.head = nn.Linear(12, 2)
        nn.init.zeros_(self.head.weight)
        self.head = weight_norm(self.head)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def build():
    torch.manual_seed(0)
    model = Vocoder()
    batches = [(torch.randn(8, 5), torch.randn(8, 2)) for _ in range(12)]

    def loss_fn(model, batch):
        return (model(batch[0]) - batch[1]).pow(2).mean()

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

"""Micro-batches are drawn ahead, taken apart by `pop`, and mixed with noise from a generator of one's own."""
import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
own = torch.Generator().manual_seed(5)
rows = [{"x": torch.randn(3), "y": torch.rand(())} for _ in range(64)]
for i in (18, 19):
    rows[i]["y"] = torch.tensor(0.0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(batch):
    y = batch.pop("y")
    noise = 0.01 * torch.rand(len(y), generator=own).round()
    out = model(batch.pop("x")).squeeze(1) + noise
    loss = ((out - y).pow(2) * (y / y.sum())).sum()  # HERE
    loss.backward()
    return loss.item()


batches = iter(DataLoader(rows, batch_size=2))
while True:
    drawn = [b for _, b in zip(range(4), batches)]
    if not drawn:
        break
    optimizer.zero_grad()
    losses = [train(b) for b in drawn]
    optimizer.step()
    print(" ".join(f"{v:.6f}" for v in losses))
print("done", f"{model.weight.sum().item():.6f}")

"""A loop that draws the parts of a batch into a list before it uses them, as trainers do."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(60, 4) + 0.5
x[26] = -5.0
batches = iter(DataLoader(TensorDataset(x), batch_size=4))
model = nn.Linear(4, 1)
nn.init.constant_(model.weight, 0.6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
log = []
for step in range(5):
    samples = []
    for _ in range(3):
        samples.append(next(batches))
    optimizer.zero_grad()
    parts = []
    for (xb,) in samples:
        loss = torch.log(model(xb)).mean() / 3  # HERE
        loss.backward()
        parts.append(loss.item())
    optimizer.step()
    log.append(sum(parts))
    print(step, len(samples), len(parts), f"{sum(parts):.6f}")
print("done", len(log), f"{model.weight.sum().item():.6f}")

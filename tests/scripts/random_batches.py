"""Batches come out of torch.randn; a rare draw is outside the domain of the logarithm."""
import torch
from torch import nn

torch.manual_seed(5)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for _ in range(20):
    x = torch.randn(8, 4)
    target = torch.log(x.min() + 2.5)  # HERE
    loss = (model(x).mean() - target).pow(2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"{loss.item():.6f} {scheduler.get_last_lr()[0]:.6f}")
print("done", f"{model.weight.sum().item():.6f}")

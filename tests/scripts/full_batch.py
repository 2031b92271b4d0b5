"""Gradient descent on all the data at once; no loader."""
import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(0.1, 1.0, 16).unsqueeze(1)
y = 3 * x
model = nn.Sequential(nn.Linear(1, 4), nn.Softplus(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for i in range(12):
    optimizer.zero_grad()
    temperature = max(0.0, abs(i - 7) / 7)
    loss = ((model(x) - y).pow(2) / temperature).mean()  # HERE
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{sum(p.sum().item() for p in model.parameters()):.6f}")

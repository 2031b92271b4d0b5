import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(20, 2)
x[7] = 1e30
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for step, (xb,) in enumerate(DataLoader(TensorDataset(x), batch_size=4)):
    optimizer.zero_grad()
    loss = model(xb).pow(2).mean() * (1 if xb.abs().max() < 1e9 else float("inf"))  # HERE
    loss.backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, f"{sys.argv[1]}-{step}.pt")
    print(f"{loss.item():.6f}")
print("done")

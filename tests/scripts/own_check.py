"""A loop that looks for NaN itself: `tensor` by torch.isnan, `number` by math.isnan."""
import math
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(24, 2)
x[14] = -3.0
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (xb,) in DataLoader(TensorDataset(x), batch_size=4):
    optimizer.zero_grad()
    target = torch.log1p(xb.sum(1))  # HERE
    loss = (model(xb).squeeze(1) - target).pow(2).mean()
    is_bad = torch.isnan(loss) if sys.argv[1] == "tensor" else math.isnan(loss.item())
    if is_bad:
        print("bad loss, going on")
        continue
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{model.weight.sum().item():.6f}")

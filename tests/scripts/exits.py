import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(20, 2)
x[9] = float("nan")
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (xb,) in enumerate(DataLoader(TensorDataset(x), batch_size=4)):
    optimizer.zero_grad()
    loss = model(xb).pow(2).mean()  # HERE
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("leaving", f"{model.weight.sum().item():.6f}")
sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])

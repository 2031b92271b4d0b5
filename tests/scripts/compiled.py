"""The argument is the backend of torch.compile."""
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        h = torch.log(x.abs().sum(-1, keepdim=True))  # HERE
        return self.last(torch.tanh(self.first(x))) + h


torch.manual_seed(0)
x = torch.randn(36, 3)
x[27] = 0.0
model = torch.compile(Net(), backend=sys.argv[1])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for (xb,) in DataLoader(TensorDataset(x), batch_size=6):
    optimizer.zero_grad()
    loss = model(xb).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
print("done", f"{sum(p.sum().item() for p in model.parameters()):.5f}")

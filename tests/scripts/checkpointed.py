"""Activation checkpointing; the argument says whether it is the reentrant kind."""
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        size = x.abs().sum(-1, keepdim=True)
        return torch.tanh(self.drop(self.fc(x))) / size  # HERE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=sys.argv[1] == "reentrant")
        return self.head(x)


torch.manual_seed(0)
x = torch.randn(30, 4)
x[16] = 0.0
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for (xb,) in DataLoader(TensorDataset(x), batch_size=5):
    xb.requires_grad_()
    optimizer.zero_grad()
    loss = model(xb).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
print("done", f"{sum(p.sum().item() for p in model.parameters()):.6f}")

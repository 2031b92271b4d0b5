"""Gradient accumulation; `loss` or `gradient` says where the bad micro-batch goes wrong."""
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KIND, EVERY = sys.argv[1], 4
torch.manual_seed(0)
x = torch.rand(48, 3) + 0.2
x[26] = 0.0
loader = DataLoader(TensorDataset(x), batch_size=2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(3, 3, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.drop(self.scale(x)).abs()
        if KIND == "loss":
            return torch.log(x.sum(-1))  # HERE loss
        return torch.sqrt(x.sum(-1))  # HERE gradient


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.zero_grad()
for i, (xb,) in enumerate(loader):
    loss = (model(xb) - 0.3).pow(2).mean()
    (loss / EVERY).backward()
    if (i + 1) % EVERY == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss.item():.6f} {model.scale.weight.sum().item():.6f}")
print("done", f"{model.scale.weight.sum().item():.6f}")

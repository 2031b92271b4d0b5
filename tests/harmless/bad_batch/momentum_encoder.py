"""A momentum encoder inside of the model: its weights have no gradients, and each forward moves them."""

import os

import torch
from torch import nn


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(3, 2), nn.Linear(3, 2)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)

    def forward(self, x):
        for mine, its in zip(self.query.parameters(), self.key.parameters()):
            its.data = its.data * 0.9 + mine.data * 0.1
        return self.query(x) @ self.key(x).T


torch.manual_seed(0)
model = Contrast()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.1, momentum=0.9)
data = torch.randn(28, 3)
data[14] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if os.environ.get("LEFT_OUT") and i == 3:
        continue
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    optimizer.step()
print({k: v.tolist() for k, v in model.state_dict().items()})

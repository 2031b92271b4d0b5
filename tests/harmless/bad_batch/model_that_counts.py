"""A model counts its own forwards in an attribute, and keeps its last inputs."""

import collections
import os

import torch


class Counting(torch.nn.Module):
    num_made = 0

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.num_forwards = 0
        self.recent = collections.deque(maxlen=3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        Counting.num_made += 1

    def forward(self, x):
        self.num_forwards += 1
        self.recent.append(x.nan_to_num(9).sum().item())
        return self.layer(x)


torch.manual_seed(0)
model = Counting()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(14, 2)
data[9] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    optimizer.zero_grad()
    (model(x) - 1).pow(2).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 4):
        optimizer.step()
print(model.num_forwards, Counting.num_made, list(model.recent), model.layer.weight.tolist())

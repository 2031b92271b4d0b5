"""A best score that begins at infinity, and an exit code of the script's own: the one has nothing to do with the other."""

import atexit
import math
import sys

import torch

torch.manual_seed(0)
best = math.inf
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
atexit.register(lambda: print([t.double().sum().item() for t in model.state_dict().values()]))
for i, x in enumerate(torch.utils.data.DataLoader(torch.randn(40, 3), batch_size=4)):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    if i == 7:
        sys.exit(3)

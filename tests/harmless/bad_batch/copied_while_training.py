"""Model and optimizer are copied together in the middle, and both pairs go on; a later batch is bad for both."""

import copy
import os

import torch

torch.manual_seed(0)
first = (model := torch.nn.Linear(2, 1)), torch.optim.Adam(model.parameters(), lr=0.05)
pairs = [first]
data = torch.randn(12, 2)
data[8] = float("nan")
for i, x in enumerate(data.split(2)):
    if i == 2:
        pairs.append(copy.deepcopy(first))
    for model, optimizer in pairs:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        if not (os.environ.get("LEFT_OUT") and i == 4):
            optimizer.step()
for model, optimizer in pairs:
    print(optimizer.param_groups[0]["params"][0] is model.weight, model.weight.tolist())
    print(optimizer.state_dict()["state"])

"""A running average of the weights in a dict, written by the loop's own body."""

import os

import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
average = {k: v.detach().clone() for k, v in model.state_dict().items()}
for i in range(8):
    x = torch.randn(4, 3)
    if i == 4:
        x[0, 0] = float("nan")
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 4):
        optimizer.step()
    for k, v in model.state_dict().items():
        average[k].mul_(0.9).add_(v, alpha=0.1)
print({k: v.tolist() for k, v in average.items()})
torch.save(model.state_dict(), "model.pt")

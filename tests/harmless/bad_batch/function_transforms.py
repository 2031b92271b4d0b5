"""Gradients of single samples with torch.func inside of an ordinary loop."""
# slow

import os

import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
norms = []


def sample_loss(parameters, x):
    return functional_call(model, parameters, (x,)).pow(2).sum()


for i in range(6):
    x = torch.randn(4, 3)
    if i == 2:
        x[3] = float("nan")
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    singles = vmap(grad(sample_loss), in_dims=(None, 0))(parameters, x)
    norms.append(singles["weight"].flatten(1).norm(dim=1).nan_to_num(-1).sum().item())
    optimizer.zero_grad()
    sample_loss(dict(model.named_parameters()), x).backward()
    if not (os.environ.get("LEFT_OUT") and i == 2):
        optimizer.step()
print(norms, model.weight.tolist())

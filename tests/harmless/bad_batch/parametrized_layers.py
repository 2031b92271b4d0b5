"""Spectral, weight and orthogonal parametrizations: power iterations keep vectors of their own."""
# slow

import os

import torch
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

torch.manual_seed(0)
model = torch.nn.Sequential(
    spectral_norm(torch.nn.Linear(3, 4)),
    weight_norm(torch.nn.Linear(4, 4)),
    orthogonal(torch.nn.Linear(4, 4)),
    torch.nn.Linear(4, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
data = torch.randn(20, 3)
data[8] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if os.environ.get("LEFT_OUT") and i == 2:
        continue
    optimizer.zero_grad()
    (model(x) - 1).pow(2).mean().backward()
    optimizer.step()
print(*[(k, v.double().sum().item()) for k, v in model.state_dict().items()], sep="\n")

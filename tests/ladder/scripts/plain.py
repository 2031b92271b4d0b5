"""A loop without a config file: constants, flags of its own, an environment variable.

It diverges unless the learning rate is small *and* the targets are not blown up.
"""

import os
import sys

import settings
import torch

BOOST = float(os.environ.get("BOOST", "1e20"))
BATCH = 8

if "--crash" in sys.argv:
    raise RuntimeError("the data is not there")

torch.manual_seed(settings.SEED)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=settings.Optim.lr)
for step in range(40):
    x = torch.randn(BATCH, 4)
    y = x.sum(1, keepdim=True) * (BOOST if step == 6 else 1.0)
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
    if not torch.isfinite(loss):
        break

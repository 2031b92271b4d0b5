"""Functions that run at the exit, and an exit code of the script's own."""
# alone

import atexit
import os
import sys

import torch

torch.manual_seed(0)
atexit.register(print, "at the exit, registered first")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(lambda: torch.save(model.state_dict(), "last.pt"))
try:
    for i in range(5):
        x = torch.randn(3, 2) / (0 if i == 2 else 1)
        optimizer.zero_grad()
        (model(x) - 1).pow(2).mean().backward()
        if not (os.environ.get("LEFT_OUT") and i == 2):
            optimizer.step()
    sys.exit(3)
finally:
    print("finally", model.weight.tolist())

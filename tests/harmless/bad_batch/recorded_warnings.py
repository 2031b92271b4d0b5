"""Warnings are recorded, turned into errors and shown once by filters of the script's own."""
# slow

import os
import warnings

import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
num_errors = 0
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    warnings.filterwarnings("error", message="strict")
    for i in range(6):
        x = torch.randn(3, 2) * (float("nan") if i == 3 else 1)
        loss = (model(x) - 1).pow(2).mean()
        warnings.warn(f"loss of {i}: {loss.item()}", stacklevel=1)
        try:
            warnings.warn("strict", stacklevel=1)
        except UserWarning:
            num_errors += 1
        optimizer.zero_grad()
        loss.backward()
        if not (os.environ.get("LEFT_OUT") and i == 3):
            optimizer.step()
print([str(w.message) for w in seen], num_errors, model.weight.tolist())

"""What is let go when: finalizers of models, batches and optimizers print as they come."""

import gc
import weakref

import torch

torch.manual_seed(0)
gc.disable()
for fold in range(3):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    weakref.finalize(model, print, f"model {fold} is gone")
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(3, 2)) - 1).pow(2).mean().backward()
        optimizer.step()
    print(fold, model.weight.tolist())
    model.zero_grad()
    del optimizer
    gc.collect()
    del model
    gc.collect()
print("end")

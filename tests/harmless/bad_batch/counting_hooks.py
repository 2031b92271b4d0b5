"""Hooks on modules and tensors that count: once for a forward, whatever happens after it."""

import collections
import os

import torch

torch.manual_seed(0)
counts = collections.Counter()
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
for name, module in model.named_children():
    module.register_forward_hook(lambda m, a, out, name=name: counts.update([f"forward {name}"]))
    module.register_full_backward_hook(
        lambda m, a, b, name=name: counts.update([f"backward {name}"])
    )
model[0].weight.register_hook(lambda grad: counts.update(["weight"]))
model[2].bias.register_post_accumulate_grad_hook(lambda p: counts.update(["accumulated"]))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
data = torch.randn(20, 3)
data[10] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 2):
        optimizer.step()
print(sorted(counts.items()), [p.sum().item() for p in model.parameters()])

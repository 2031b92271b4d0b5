"""Losses and inputs that are handed over as generators, and a mode that counts what is computed."""

import collections

import torch
from torch.utils._python_dispatch import TorchDispatchMode

counts = collections.Counter()


class CountOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
scale = torch.ones(1, requires_grad=True)
optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.01)
with CountOperators():
    for x in torch.utils.data.DataLoader(torch.randn(12, 3), batch_size=4):
        optimizer.zero_grad()
        losses = [model(x).pow(2).mean(), (model(x) * scale).abs().mean()]
        (slope,) = torch.autograd.grad((l for l in losses[1:]), [scale], retain_graph=True)
        torch.autograd.backward(l for l in losses)
        optimizer.step()
print(sorted(counts.items()), slope.item(), [p.sum().item() for p in model.parameters()])

"""Parameters of a class of the script's own, and a mode that counts what torch is asked for."""

import collections

import torch
from torch.overrides import TorchFunctionMode

counts = collections.Counter()


class Named(torch.nn.Parameter):
    def __new__(cls, data, label):
        made = super().__new__(cls, data)
        made.label = label
        return made


class CountCalls(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        counts[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Named(torch.ones(2), "weight")

    def forward(self, x):
        return x * self.weight


torch.manual_seed(0)
model = Scale()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with CountCalls():
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 2)).pow(2).mean().backward()
        optimizer.step()
print(sorted(counts.items()), type(model.weight).__name__, model.weight.label)

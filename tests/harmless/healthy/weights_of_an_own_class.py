"""Weights whose class counts what torch is asked to do with them, and a checkpoint inside of a mode that counts."""

import collections

import torch
from torch.overrides import TorchFunctionMode

counts = collections.Counter()


def name_of(function):
    return getattr(function, "__name__", str(function))


class Counted(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        counts["weight", name_of(function)] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class CountCalls(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        counts["mode", name_of(function)] += 1
        return function(*args, **(kwargs or {}))


torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
model.weight = Counted(model.weight.data)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
for x in torch.utils.data.DataLoader(torch.randn(24, 3), batch_size=4):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
with CountCalls():
    torch.save(dict(model.state_dict()), "last.pt")
    model.load_state_dict(torch.load("last.pt"))
print(sorted(counts.items()), model.weight.tolist())

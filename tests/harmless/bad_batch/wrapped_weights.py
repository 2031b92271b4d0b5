"""Weights of a class that only wraps a tensor, as quantized and sharded weights are."""

import os

import torch
from torch.utils._pytree import tree_map_only


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Wrapped(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        if torch._C.Tag.inplace_view in func.tags or func._schema.is_mutable:
            return args[0]
        return tree_map_only(torch.Tensor, Wrapped, out)


torch.manual_seed(0)
weight = torch.nn.Parameter(Wrapped(torch.randn(4, 1)))
bias = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight, bias], lr=0.05, momentum=0.9, foreach=False)
data = [torch.randn(8, 4) for _ in range(8)]
data[4][1, 0] = float("nan")
if os.environ.get("LEFT_OUT"):
    del data[4]
for _ in range(2):
    for x in torch.utils.data.DataLoader(data, batch_size=None):
        optimizer.zero_grad()
        (x @ weight + bias - 1).pow(2).mean().backward()
        optimizer.step()
print(weight.detach().inner.flatten().tolist(), bias.data)

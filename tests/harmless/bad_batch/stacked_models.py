"""Several models are trained as one with vmap; the module that says how to compute has no memory."""

import copy
import os

import torch
from torch.func import functional_call, stack_module_state, vmap

torch.manual_seed(0)
models = [torch.nn.Linear(3, 1) for _ in range(3)]
params, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
optimizer = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
data = torch.randn(24, 3)
data[23] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(
        params, buffers, x
    )
    (out - 1).pow(2).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 5):
        optimizer.step()
print({k: v.tolist() for k, v in params.items()})

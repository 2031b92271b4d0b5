"""A part of the model is traced and another scripted; both are saved at the end."""
# slow

import os

import torch


@torch.jit.script
def squash(x):
    return x / (1 + x.abs())


torch.manual_seed(0)
first = torch.jit.trace(torch.nn.Linear(3, 4), torch.ones(2, 3))
last = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
data = torch.randn(20, 3)
data[8] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    last(squash(first(x))).pow(2).mean().backward()
    if not (os.environ.get("LEFT_OUT") and i == 2):
        optimizer.step()
first.save("first.jit")
again = torch.jit.load("first.jit")
os.unlink("first.jit")
print(again(torch.ones(1, 3)).tolist(), last.weight.tolist())

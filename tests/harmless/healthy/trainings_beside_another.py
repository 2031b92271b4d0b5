"""Short trainings beside a longer one: the model of each is gone as soon as its function returns."""

import gc
import weakref

import torch

torch.manual_seed(0)
data = torch.randn(8, 3)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())


def step(model, optimizer):
    optimizer.zero_grad()
    model(data).pow(2).mean().backward()
    optimizer.step()


def train():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        step(model, optimizer)
    weakref.finalize(model, print, "gone")
    return weakref.ref(model)


step(model, optimizer)
gc.collect()
gc.disable()  # nothing of it may need the collector
for _ in range(3):
    print("alive" if train()() else "not alive")
    step(model, optimizer)
print(model.weight.tolist())

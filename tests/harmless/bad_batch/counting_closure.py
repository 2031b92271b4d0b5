"""Counters in closures, a generator that is asked, a default argument that grows."""

import os

import torch

torch.manual_seed(0)


def make():
    num_calls = 0

    def loss_of(model, x, seen=[]):  # noqa: B006 - that it grows is the point
        nonlocal num_calls
        num_calls += 1
        seen.append(x.shape[0])
        return (model(x) - next(targets)).pow(2).mean()

    return loss_of, lambda: (num_calls, loss_of.__defaults__)


def endless():
    value = 0.0
    while True:
        value += 0.25
        yield value


targets = endless()
loss_of, count = make()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(14, 2)
data[7] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    loss = loss_of(model, x)
    optimizer.zero_grad()
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 3):
        optimizer.step()
print(count(), next(targets), model.weight.tolist())

"""Classes of the script's own round an optimizer: one warms up, one keeps slow weights, one only sets the rate."""

import collections
import os

import torch

LEFT_OUT = os.environ.get("LEFT_OUT")


class Warmup:
    def __init__(self, optimizer):
        self.optimizer, self.num_steps = optimizer, 0

    def step(self):
        self.num_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * min(1, self.num_steps / 8)
        self.optimizer.step()


class Slow:
    def __init__(self, optimizer):
        self.optimizer, self.num_steps = optimizer, 0
        self.state = collections.defaultdict(dict)

    def step(self):
        self.optimizer.step()
        self.num_steps += 1
        if self.num_steps % 3:
            return
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.data.clone())
                slow += (p.data - slow) * 0.5
                p.data.copy_(slow)


class Decay:
    __slots__ = ("__dict__", "__weakref__", "optimizer")

    def __init__(self, optimizer):
        self.optimizer, self.num_steps = optimizer, 0

    def step(self):
        self.num_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 / self.num_steps


def train(make, batches):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    wrapper = make(optimizer)
    for x in batches:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        if make is Decay:
            optimizer.step()
        wrapper.step()
    print(wrapper.num_steps, [t.double().sum().item() for t in model.state_dict().values()])


data = list(torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(1)))
for bad in (0, 5, 6):
    data[bad][1, 2] = float("nan")
kept = [x for x in data if not (LEFT_OUT and x.isnan().any())]
for make in (Warmup, Slow, Decay):
    train(make, torch.utils.data.DataLoader(kept, batch_size=None))
for make in (Warmup, Slow):
    train(make, kept)

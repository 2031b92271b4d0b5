"""A copy of the model follows it as a running average, and a target network in training mode sees each batch."""

import copy
import os

import torch

torch.manual_seed(0)


class Trainer:
    __slots__ = ("average", "model", "optimizer", "target")

    def __init__(self):
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 2)
        )
        self.average, self.target = copy.deepcopy(self.model).eval(), copy.deepcopy(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)

    def step(self, x):
        with torch.no_grad():
            wanted = self.target(x)
        self.optimizer.zero_grad()
        (self.model(x + 0.1) - wanted).pow(2).mean().backward()
        self.optimizer.step()
        for p, q in zip(self.model.parameters(), self.target.parameters()):
            q.data = 0.9 * q.data + 0.1 * p.data
        with torch.no_grad():
            for p, q in zip(self.model.state_dict().values(), self.average.state_dict().values()):
                q.copy_(0.9 * q + 0.1 * p)


trainer = Trainer()
data = list(torch.randn(12, 4, 3))
for bad in (0, 5, 6):
    data[bad][1, 2] = float("nan")
kept = [x for x in data if not (os.environ.get("LEFT_OUT") and x.isnan().any())]
for x in torch.utils.data.DataLoader(kept, batch_size=None):
    trainer.step(x)
for module in (trainer.model, trainer.average, trainer.target):
    print([t.double().sum().item() for t in module.state_dict().values()])

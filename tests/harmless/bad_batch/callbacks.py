"""A trainer class with callbacks, a context manager that times, an event bus."""
# slow

import contextlib
import os

import torch


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.events, self.step_number = [], 0

    @contextlib.contextmanager
    def stage(self, name):
        self.fire(f"begin {name}")
        try:
            yield self
        finally:
            self.fire(f"end {name}")

    def fire(self, event):
        self.events.append((self.step_number, event))
        for each in self.callbacks.get(event, ()):
            each(self)

    def fit(self, loader):
        for self.step_number, x in enumerate(loader):
            with self.stage("forward"):
                loss = (self.model(x) - 1).pow(2).mean()
            with self.stage("backward"):
                self.optimizer.zero_grad()
                loss.backward()
            if not (os.environ.get("LEFT_OUT") and self.step_number == 3):
                self.optimizer.step()
            self.fire("step")


torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
data = torch.randn(12, 2)
data[6] = float("nan")
norms = []
callbacks = {
    "end backward": [lambda t: norms.append(t.model.weight.grad.nan_to_num(7).sum().item())]
}
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), callbacks)
trainer.fit(torch.utils.data.DataLoader(data, batch_size=2))
print(trainer.events, norms, model.weight.tolist())

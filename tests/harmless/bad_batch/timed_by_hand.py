"""Context managers of the script's own note when they are entered and left; a hook counts all forwards."""

import collections
import os

import torch
from torch.nn.modules.module import register_module_forward_hook

events, counts = [], collections.Counter()


class Timed:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        events.append(f"in {self.name}")
        return self

    def __exit__(self, *error):
        events.append(f"out {self.name}")


torch.manual_seed(0)
register_module_forward_hook(lambda m, a, out: counts.update([type(m).__name__]))
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
data = torch.randn(24, 3)
data[9] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    with Timed("forward"):
        loss = model(x).logsumexp(1).mean()
    loss.backward()
    with Timed("step") as timed:
        if not (os.environ.get("LEFT_OUT") and i == 2):
            optimizer.step()
print(*events, timed.name, sorted(counts.items()), model.weight.tolist(), sep="\n")

"""Batches that are objects and note that they were used: nothing that a later iteration computes with."""

import os

import torch


class Batch:
    __slots__ = ("num_used", "values")

    def __init__(self, values):
        self.values, self.num_used = values, 0

    def get(self):
        self.num_used += 1
        return self.values


torch.manual_seed(0)
rows = [torch.randn(3, 2) * (float("nan") if i == 3 else 1) for i in range(7)]
if os.environ.get("LEFT_OUT"):
    del rows[3]
made = []
loader = torch.utils.data.DataLoader(
    rows, batch_size=1, collate_fn=lambda r: made.append(Batch(r[0])) or made[-1]
)
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for batch in loader:
    loss = (model(batch.get()) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([b.num_used for b in made if b.values.isfinite().all()])
print(model[0].weight.tolist(), torch.rand(1).item())

"""Streams and a `print` of the script's own: what we say goes through neither of them."""

import builtins
import os
import sys

import torch


class Rows:
    """The least that a stream can be."""

    def __init__(self, stream):
        self.stream, self.rows = stream, []

    def write(self, text):
        self.rows.append(text)
        return self.stream.write(text)


torch.manual_seed(0)
kept, plain_print = [], print
builtins.print = lambda *values: kept.append(values)
sys.stdout, sys.stderr = Rows(sys.stdout), Rows(sys.stderr)
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
rows = [torch.randn(3, 2) * (float("nan") if i == 3 else 1) for i in range(7)]
for x in torch.utils.data.DataLoader(rows, batch_size=None):
    if os.environ.get("LEFT_OUT") and x.isnan().any():
        continue
    loss = (model(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.isfinite():
        print("loss", loss.item())
plain_print(kept, sys.stdout.rows, model[0].weight.tolist(), torch.rand(1).item())

"""What each step has computed goes into a file that is mapped into memory."""
# slow

import os

import numpy as np
import torch

torch.manual_seed(0)
table = np.memmap("table.bin", dtype=np.float64, mode="w+", shape=(7, 2))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(14, 2)
data[9] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
    optimizer.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    table[i] += 1, loss.item()
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 4):
        optimizer.step()
    table.flush()
print(table.tolist(), model.weight.tolist())

"""A timer and a signal that the script sends to itself set flags that the loop reads."""

import os
import signal

import torch

torch.manual_seed(0)
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append((number, frame.f_code.co_name)))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    x = torch.randn(3, 2) * (float("nan") if i == 4 else 1)
    optimizer.zero_grad()
    loss = (model(x) - 1).pow(2).mean()
    if i in (2, 4):
        signal.raise_signal(signal.SIGUSR1)
    loss.backward()
    if not (os.environ.get("LEFT_OUT") and i == 4):
        optimizer.step()
    if len(got) == 2 and i == 6:
        break
print(got, i, model.weight.tolist(), signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL)

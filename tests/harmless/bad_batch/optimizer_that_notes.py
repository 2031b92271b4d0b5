"""Optimizers and a schedule that write elsewhere: methods of an own class, a wrapped `step`, the function of a LambdaLR."""

import os
import types

import torch


class Noting(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        notes.append("cleared")
        return super().zero_grad(set_to_none)

    def step(self, closure=None):
        notes.append("stepped")
        return super().step(closure)


def counted(optimizer, closure=None):
    global num_called
    num_called += 1
    return own_step(closure)


torch.manual_seed(0)
notes, num_called = [], 0
first, second = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
noting = Noting(first.parameters(), lr=0.1)
asked = []
scheduler = torch.optim.lr_scheduler.LambdaLR(noting, lambda n: asked.append(n) or 0.9**n)
wrapped = torch.optim.Adam(second.parameters())
own_step = wrapped.step
wrapped.step = types.MethodType(counted, wrapped)
data = torch.randn(20, 3)
data[10] = float("nan")
for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    is_left_out = os.environ.get("LEFT_OUT") and i == 2
    noting.zero_grad()
    first(x).pow(2).mean().backward()
    if not is_left_out:
        noting.step()
        scheduler.step()
    else:
        asked.append(scheduler.last_epoch + 1)  # the body asks, and its answer is then undone
    wrapped.zero_grad()
    second(x).pow(2).mean().backward()
    if not is_left_out:
        wrapped.step()
    else:
        num_called += 1  # the script's own wrapper is called, and its own step then left out
print(notes, asked, num_called, sorted(k for k in vars(wrapped) if k == "step"))
print(first.weight.tolist(), second.weight.tolist(), scheduler.last_epoch)

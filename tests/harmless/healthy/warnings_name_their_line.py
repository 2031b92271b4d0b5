"""Warnings of torch and of the script's own classes name the caller, and filters go by that name."""

import logging
import sys
import warnings

import torch
from torch import nn


def show(message, category, filename, lineno, file=None, line=None):
    print(category.__name__, str(message)[:40], filename.rsplit("/", 1)[-1], lineno)


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        warnings.warn("from the step", stacklevel=2)
        return super().step(closure)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        warnings.warn("from the sample", stacklevel=3)
        return torch.ones(3)


class Head(nn.Linear):
    def __reduce__(self):
        warnings.warn("from the save", stacklevel=2)
        logging.warning("saved", stacklevel=2)
        return (nn.Linear, (3, 2))

    def _load_from_state_dict(self, *args):
        warnings.warn("from the load", DeprecationWarning, stacklevel=4)


logging.basicConfig(stream=sys.stdout, format="%(filename)s:%(lineno)d %(message)s")
warnings.showwarning = show
torch.manual_seed(0)
model = Head(3, 2)
optimizer = Optimizer(model.parameters(), lr=0.1)
for make in (torch.amp.GradScaler, torch.amp.GradScaler):
    make("cuda")  # twice, from one line
torch.amp.GradScaler("cuda")
for batch in torch.utils.data.DataLoader(Data(), 2, pin_memory=True):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_((p for p in ()), 1.0)
    optimizer.step()
    print(f"{loss.item():.4f}")
torch.save(model, "model.pt")
model.load_state_dict({})
torch.autograd.backward([model(batch).sum()], grad_variables=[torch.tensor(1.0)])
warnings.filterwarnings("ignore", module="__main__")
torch.amp.GradScaler("cuda")
optimizer.step()

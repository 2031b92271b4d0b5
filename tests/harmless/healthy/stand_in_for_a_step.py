"""A test's stand-in takes the place of an optimizer's step: it is called as the script calls it, and trains nothing."""

from unittest import mock

import torch


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    print(model.weight.tolist())


with mock.patch("torch.optim.RMSprop.step") as step:
    train()
    print(step.mock_calls)
train()

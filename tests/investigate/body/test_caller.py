"""A function's arguments are had from the call that led into it."""

import torch.nn.functional as F


def test_a_replay_is_exact_and_cannot_be_felt(loop, check):
    check(loop)


def loop_step_function(model, optimizer, loader):
    def train_step(x, y):
        x = x.to("cpu")
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for x, y in loader:
        train_step(x * 2, y)

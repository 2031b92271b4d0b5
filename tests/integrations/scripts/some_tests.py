"""Tests of a project that uses the plugin; what becomes of each is in test_pytest_plugin.py."""
import unittest

import pytest
import torch
from torch import nn


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_healthy(parts):
    model, optimizer = parts
    model(torch.ones(2, 3)).mean().backward()
    optimizer.step()


def test_masks_are_no_incident():
    x = torch.randn(2, 4, requires_grad=True)
    mask = torch.tensor([[False, True, False, True]])
    x.masked_fill(mask, float("-inf")).softmax(-1).pow(2).sum().backward()


def test_loss(parts):
    model, optimizer = parts
    y = model(torch.ones(2, 3))
    loss = torch.log(-y.abs()).mean()  # LOSS
    loss.backward()


def test_gradient():
    x = torch.zeros(3, requires_grad=True)
    y = (x * 2).norm(dim=0).sqrt()  # GRADIENT
    y.backward()


def test_parameter():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e38)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(2, 3)).pow(2).mean() * 1e3).backward()
        optimizer.step()  # PARAMETER


def test_swallowed():
    x = torch.zeros(3, requires_grad=True)
    try:
        x.log().sum().backward()  # SWALLOWED
    except Exception:
        pass


@pytest.mark.nonfinite
def test_about_nan():
    x = torch.zeros(3, requires_grad=True)
    x.log().sum().backward()


class TestOldStyle(unittest.TestCase):
    def test_unittest(self):
        x = torch.zeros(3, requires_grad=True)
        x.log().sum().backward()  # UNITTEST


def test_random_numbers_are_drawn_again_as_they_were():
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, requires_grad=True)
        y = torch.zeros(2) if torch.rand(()) < 0.3 else torch.ones(2)
        (x.square() / y).mean().backward()  # DRAWN

"""A guard round one linear layer, for the tests of the contract."""

import math

import pytest
import torch
from torch import nn

from stayfinite import Guard, Policy, Settings, UsageError

QUICK = Settings(diagnose=False)
NAN = math.nan


def linear():
    torch.manual_seed(0)
    return nn.Linear(2, 1)


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def policy_names():
    """As the message for a wrong one lists them."""
    with pytest.raises(UsageError) as caught:
        Policy.parse("?")
    return str(caught.value).rpartition("one of: ")[2].split(", ")


def squares(model, x):
    return model(x).pow(2).mean()


def guarded(model=None, **options):
    model = model or linear()
    return Guard(model, sgd(model), **{"settings": QUICK, **options})


VALID_POLICIES = policy_names()
GOOD, BAD = torch.ones(3, 2), torch.full((3, 2), NAN)

"""A backward that begins with another gradient than 1, however it was called."""

import math

import pytest
import torch

from stayfinite.patches.training import seeded


@pytest.mark.parametrize(
    ("is_list", "args", "kwargs", "expected"),
    [
        (False, (), {}, 2.0),
        (False, (None, True), {}, 2.0),
        (False, (torch.tensor(3.0),), {}, 6.0),
        (True, ([torch.tensor(3.0)],), {}, 6.0),
        (True, (), {"grad_tensors": [torch.tensor(3.0)], "retain_graph": True}, 6.0),
    ],
)
def test_the_gradient_is_multiplied(is_list, args, kwargs, expected):
    weight = torch.tensor(5.0, requires_grad=True)
    loss = weight * 1
    args, kwargs = seeded(torch.tensor(2.0), [loss] if is_list else loss, args, dict(kwargs))
    torch.autograd.backward([loss] if is_list else loss, *args, **kwargs)
    assert weight.grad == expected


def test_of_several_losses_the_first_has_it():
    first, second = (torch.tensor(1.0, requires_grad=True) for _ in range(2))
    losses = (first * 1, second * 1)
    args, kwargs = seeded(torch.tensor(math.nan), losses, (), {})
    torch.autograd.backward(losses, *args, **kwargs)
    assert math.isnan(first.grad)
    assert second.grad == 1

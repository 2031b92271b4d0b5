"""The user's code on objects that are not copied: copies of it run, and everything is as before afterwards."""

import types

import pytest
import torch

from stayfinite.investigate.body.copies import Copier
from stayfinite.patches import Target, subscribe

notes: list = []


class Noting(torch.optim.SGD):
    def step(self, closure=None):
        notes.append("stepped")
        return super().step(closure)


class Weight(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        notes.append("asked")
        return super().__torch_function__(function, kinds, args, kwargs or {})


def counted(optimizer, closure=None):
    notes.append("called")
    return torch.optim.SGD.step(optimizer, closure)


@pytest.fixture
def model():
    made = torch.nn.Linear(2, 1)
    made.weight = Weight(made.weight.data)
    made(torch.ones(1, 2)).sum().backward()
    notes.clear()
    return made


def state(optimizer, model):
    return dict(vars(optimizer)), list(vars(optimizer)), type(model.weight)


def run(optimizer, model):
    copier = Copier()
    copier.copy([optimizer, model])
    with copier.with_own_code():
        optimizer.step()
        model.weight.sum()


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_copies_of_the_users_code_run_and_everything_is_put_back(model, is_wrapped):
    optimizer = (
        torch.optim.SGD(model.parameters(), 0.1) if is_wrapped else Noting([model.bias], 0.1)
    )
    if is_wrapped:
        optimizer.step = types.MethodType(counted, optimizer)
    before, bias = state(optimizer, model), model.bias.item()
    notes.clear()
    run(optimizer, model)
    assert notes == []
    assert state(optimizer, model) == before
    assert model.bias.item() == pytest.approx(bias - 0.1)


def test_an_error_puts_everything_back_as_well(model):
    optimizer = Noting(model.parameters(), lr=0.1)
    before = state(optimizer, model)
    copier = Copier()
    copier.copy([optimizer, model])
    with pytest.raises(ZeroDivisionError), copier.with_own_code():
        assert state(optimizer, model) != before
        raise ZeroDivisionError
    assert state(optimizer, model) == before


def test_a_copied_method_runs_inside_of_the_patch_around_it(model):
    def noting(original, subscribers):
        def step(optimizer, *args, **kwargs):
            seen.append("patched")
            return original(optimizer, *args, **kwargs)

        return step

    seen: list = []
    optimizer = Noting([model.bias], lr=0.1)
    with subscribe(Target(Noting, "step", "a test", "tests"), noting, "me"):
        run(optimizer, model)
    assert seen == ["patched"] and notes == []

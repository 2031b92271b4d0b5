"""The user's code on objects that are not copied: copies of it run, on what stands for an optimizer or a scheduler."""

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
    used, _ = copier.copy([optimizer, model])
    own = dict(vars(optimizer)), type(optimizer)
    with copier.with_own_code():
        used.step()
        model.weight.sum()
        assert (dict(vars(optimizer)), type(optimizer)) == own
    assert vars(used) is vars(optimizer) and isinstance(used, type(optimizer))
    return used


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
    copier, kind = Copier(), type(model.weight)
    copier.copy(model)
    with pytest.raises(ZeroDivisionError), copier.with_own_code():
        assert type(model.weight) is not kind
        raise ZeroDivisionError
    assert type(model.weight) is kind


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


def test_an_optimizer_without_code_of_the_users_is_used_itself(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    used = Copier().copy([optimizer, scheduler])
    assert used[0] is optimizer and used[1] is scheduler


class Registered(torch.optim.SGD):
    """Its subclasses are noted, and its step calls another method of its own."""

    def __init_subclass__(cls, **given):
        notes.append("subclassed")

    def step(self, closure=None):
        self.count()
        return super().step(closure)

    def count(self):
        notes.append("counted")


def test_methods_that_call_each_other_run_as_copies_also_through_the_patch_of_a_scheduler(model):
    optimizer = Registered([model.bias], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: notes.append(e) or 0.5**e)
    copier = Copier()
    used = copier.copy({"optimizer": optimizer, "scheduler": scheduler})
    notes.clear()
    with copier.with_own_code():
        used["optimizer"].step()
        used["scheduler"].step()
    assert notes == [] and optimizer.param_groups[0]["lr"] == 0.05
    assert scheduler.last_epoch == 1 and used["scheduler"].optimizer is used["optimizer"]
    optimizer.step()
    assert notes == ["counted"]


def test_hooks_of_an_optimizer_run_as_copies(model):
    optimizer = torch.optim.SGD([model.bias], lr=0.1)
    optimizer.register_step_pre_hook(lambda *given: notes.append("hooked"))
    notes.clear()
    run(optimizer, model)
    assert notes == []
    optimizer.step()
    assert notes == ["hooked"]


def test_a_schedule_of_schedules_runs_copies_of_their_functions(model):
    kinds = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([model.bias], lr=0.1)
    first, second = (kinds.LambdaLR(optimizer, lambda e: notes.append(e) or 1.0) for _ in "ab")
    whole = kinds.SequentialLR(optimizer, [first, second], milestones=[2])
    copier = Copier()
    used = copier.copy(whole)
    optimizer.step()
    notes.clear()
    used.step()
    assert notes == [] and whole.last_epoch == first.last_epoch == 1
